"""What goes wrong in blocks: sharing, swapping, promises."""

from __future__ import annotations

from typing import Any

from conformance.defects.harness import Patch, defect, instead_of

from minifuse.core.places import Pages
from minifuse.core.plan import Move, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import FinishReason, Sequence
from minifuse.memory.blocks import BlockCount, BlockPool
from minifuse.memory.paged import prefixes, tables
from minifuse.memory.paged.paged import Paged
from minifuse.memory.paged.tables import Tables


@defect("vllm", "conservation")
@instead_of(BlockPool, "give_back")
def block_given_back_twice(give_back: Any, self: BlockPool, block: int) -> None:
    give_back(self, block)
    give_back(self, block)


@defect("vllm", "conservation", memory__share=True)
@instead_of(BlockPool, "give_back")
def block_free_although_others_hold_it(give_back: Any, self: BlockPool, block: int) -> None:
    """A sequence that leaves frees the blocks of the common beginning too."""
    self.holders[block] = min(1, self.holders[block])
    give_back(self, block)


@defect("vllm", "conservation", kinds=("growing",), memory__share=True)
@instead_of(Tables, "admit")
def copy_on_write_left_out(admit: Any, self: Tables, sequence: Sequence, *rest: Any) -> list[Move]:
    """A newcomer goes on in the block that it shares in part."""
    moves: list[Move] = admit(self, sequence, *rest)
    name = sequence.id
    if [move.kind for move in moves] != ["copy"]:
        return moves
    ((_, source),) = self.sources.pop(name)
    *kept, own = self.blocks.pages[name].blocks
    self.device.give_back(own)
    self.blocks.pages[name] = Pages((*kept, source), self.blocks.size)
    return []


@defect("vllm", "conservation", kinds=("growing",), memory__share=True, memory__block_size=1)
@instead_of(Tables, "alike")
def shares_a_token_too_many(alike: Any, self: Tables, newcomer: Sequence, *gone: Any) -> tuple[str, int]:
    """The comparison stops one token late: the first that differs is taken for the same."""
    name, same = alike(self, newcomer, *gone)
    return name, min(same + 1, self.cached[name], len(newcomer) - 1) if same else 0


@defect("vllm", "conservation", kinds=("crowd",), memory__share=True, memory__block_size=3)
@instead_of(Tables, "alike")
def shares_the_rest_of_a_block_unseen(alike: Any, self: Tables, newcomer: Sequence, *gone: Any) -> tuple[str, int]:
    """Of a block that is shared in part only the first token is compared."""
    name, same = alike(self, newcomer, *gone)
    return name, min(
        self.blocks.blocks_of(same) * self.blocks.size, self.cached[name], len(newcomer) - 1
    ) if same else 0


@defect("vllm", "conservation", kinds=("long",), memory__share=True)
@instead_of(prefixes, "common_length")
def compares_one_chunk_and_trusts_the_rest(right: Any, one: Any, two: Any, start: int, stop: int) -> int:
    """Only texts that are alike for longer than that show it."""
    return stop if right(one, two, start, stop) - start >= 64 else right(one, two, start, stop)


@defect("vllm", "conservation", kinds=("alike",))
@instead_of(Tables, "alike")
def a_block_is_shared_whose_last_token_differs(
    alike: Any, self: Tables, newcomer: Sequence, *gone: Any
) -> tuple[str, int]:
    """Only behind the 40th token."""
    name, same = alike(self, newcomer, *gone)
    more = same + 1 >= max(40, self.blocks.size) and (same + 1) % self.blocks.size == 0 and same + 1 < len(newcomer)
    return name, same + (more and self.cached.get(name, 0) > same)


@defect("iteration+paged+paged", "progress", "conservation", kinds=("growing",))
@instead_of(Tables, "alike")
def shares_the_last_token_too(alike: Any, self: Tables, newcomer: Sequence, *gone: Any) -> tuple[str, int]:
    """Nothing is left to compute, so there is nothing to sample from."""
    longer = Sequence(newcomer.request, [*newcomer.tokens, -1])
    return alike(self, longer, *gone)


@defect("vllm", "conservation", kinds=("growing",), memory__preemption="swap", memory__host=None)
@instead_of(tables, "copies")
def swapped_a_token_short(copies: Any, kind: Any, before: Pages, after: Pages, num_tokens: int) -> list[Move]:
    return copies(kind, before, after, num_tokens - 1)


@defect("vllm", "conservation", kinds=("growing",), memory__preemption="swap", memory__host=None)
@instead_of(Tables, "evict")
def swapped_out_without_copying(evict: Any, self: Tables, name: str) -> list[Move]:
    evict(self, name)
    return []


@defect("vllm", "conservation", kinds=("growing",), memory__preemption="swap", memory__host=None)
@instead_of(tables, "copies")
def swapped_with_two_blocks_exchanged(
    copies: Any, kind: Any, before: Pages, after: Pages, num_tokens: int
) -> list[Move]:
    blocks = before.blocks
    return copies(kind, Pages((*blocks[1:2], *blocks[:1], *blocks[2:]), before.size), after, num_tokens)


@defect("vllm", "progress", kinds=("growing",), memory__preemption="swap", memory__host=None)
@instead_of(Paged, "missing")
def returns_with_a_token_too_many(missing: Any, self: Paged, sequence: Sequence) -> tuple[Span, ...]:
    """A swapped sequence claims KV for its last token too, which has never been computed: nothing is missing."""
    (span,) = missing(self, sequence)
    return (Span(span.start + (sequence.id in self.tables.away), span.stop),)


@defect(
    *("vllm", "conservation"),
    kinds=("growing",),
    memory__preemption="recompute",
    memory__host=None,
    memory__share=False,
)
def dropped_and_taken_for_kept(patch: Patch) -> None:
    """A sequence whose KV was dropped continues where it stopped."""
    evict, admit, missing = Tables.evict, Tables.admit, Paged.missing
    remembered: dict[str, int] = {}

    def noting(self: Tables, name: str) -> list[Move]:
        remembered[name] = self.cached[name]
        return evict(self, name)

    def trusting(self: Tables, sequence: Sequence, *rest: Any) -> list[Move]:
        moves = admit(self, sequence, *rest)
        name, table = sequence.id, self.blocks.pages[sequence.id].blocks
        needed = self.blocks.blocks_of(remembered.get(name, 0)) - len(table)
        if not moves and 0 < needed <= self.blocks.promised[name]:
            self.num_written += remembered[name] - self.cached[name]
            self.cached[name] = remembered[name]
            self.blocks.pages[name] = Pages((*table, *(self.device.take() for _ in range(needed))), self.blocks.size)
            self.blocks.promise(name, self.blocks.promised[name] - needed)
        return moves

    def claiming(self: Paged, sequence: Sequence) -> tuple[Span, ...]:
        ((start, stop),) = missing(self, sequence)
        known = 0 if sequence.id in self.tables.cached else remembered.get(sequence.id, 0)
        return (Span(max(start, known), stop),)

    patch.setattr(Tables, "evict", noting)
    patch.setattr(Tables, "admit", trusting)
    patch.setattr(Paged, "missing", claiming)


@defect("vllm", "conservation", kinds=("growing",), memory__preemption="swap", memory__host=None)
def host_is_not_counted(patch: Patch) -> None:
    usage = Paged.usage
    patch.setattr(Paged, "usage", lambda self: usage(self)._replace(host=0))


@defect("vllm", "conservation")
@instead_of(Paged, "release")
def a_block_is_lost_with_every_abort(release: Any, self: Paged, sequence: Sequence, now: float) -> None:
    """Memory becomes smaller, and says nothing of it."""
    release(self, sequence, now)
    pool = self.tables.device
    if sequence.finish_reason is FinishReason.ABORTED and pool.num_blocks - 1 in pool.free:
        pool.free.remove(pool.num_blocks - 1)
        pool.num_blocks -= 1


@defect("vllm", "conservation", check="interrupted")
@instead_of(Paged, "release")
def blocks_kept_after_an_interrupt(release: Any, self: Paged, sequence: Sequence, now: float) -> None:
    if sequence.finish_reason is not FinishReason.INTERRUPTED:
        release(self, sequence, now)


@defect("vllm", "conservation", memory__share=True)
def shared_blocks_counted_twice(patch: Patch) -> None:
    usage = Paged.usage

    def counted(self: Paged) -> KVUsage:
        tables = self.tables
        return usage(self)._replace(used=sum(tables.cached[name] for name in tables.blocks.pages))

    patch.setattr(Paged, "usage", counted)


@defect("vllm", "conservation", kinds=("growing",), memory__preemption="swap", memory__host=None)
@instead_of(Tables, "arrived")
def host_blocks_never_given_back(right: Any, self: Tables, name: str) -> None:
    for pool, block in self.sources.pop(name, ()):
        if pool is self.device:
            pool.give_back(block)


@defect("iteration+paged+paged", "budget", "conservation")
def promises_forgotten(patch: Patch) -> None:
    """Blocks set aside for the rest of an answer are given to newcomers."""
    patch.setattr(Tables, "num_available", property(lambda self: len(self.device.free)))


@defect("vllm", "budget", kinds=("growing",))
def room_to_grow_is_optimistic(patch: Patch) -> None:
    patch.setattr(BlockCount, "extend", lambda self, sequence: None)
