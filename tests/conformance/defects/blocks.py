"""What goes wrong in blocks: sharing, swapping, promises."""

from __future__ import annotations

from typing import Any

from conformance.defects.harness import Patch, defect

from minifuse.memory.blocks import BlockPool
from minifuse.memory.paged import Paged
from minifuse.memory.paged import _Room as _PagedRoom
from minifuse.memory.tables import Tables
from minifuse.plan import Move
from minifuse.request import Sequence
from minifuse.work import Span


@defect("vllm", "conservation")
def block_given_back_twice(patch: Patch) -> None:
    give_back = BlockPool.give_back

    def twice(self: BlockPool, block: int) -> None:
        give_back(self, block)
        give_back(self, block)

    patch.setattr(BlockPool, "give_back", twice)


@defect("vllm", "conservation")
def block_free_although_others_hold_it(patch: Patch) -> None:
    """A sequence that leaves frees the blocks of the common beginning too."""
    give_back = BlockPool.give_back

    def whole(self: BlockPool, block: int) -> None:
        self.holders[block] = min(1, self.holders[block])
        give_back(self, block)

    patch.setattr(BlockPool, "give_back", whole)


@defect("vllm", "conservation", kinds=("growing",))
def copy_on_write_left_out(patch: Patch) -> None:
    patch.setattr(Tables, "_is_shared", lambda self, block: False)


@defect("vllm", "conservation", kinds=("growing",))
def shares_a_token_too_many(patch: Patch) -> None:
    """The comparison stops one token late: the first that differs is taken for the same."""
    alike = Tables._alike

    def generous(self: Tables, newcomer: Sequence) -> tuple[str, int]:
        name, same = alike(self, newcomer)
        return name, min(same + 1, self.cached[name], len(newcomer) - 1) if same else 0

    patch.setattr(Tables, "_alike", generous)


@defect("iteration+paged+paged", "progress")
def shares_the_last_token_too(patch: Patch) -> None:
    """Nothing is left to compute, so there is nothing to sample from."""
    alike = Tables._alike

    def all_of_it(self: Tables, newcomer: Sequence) -> tuple[str, int]:
        longer = Sequence(newcomer.request, [*newcomer.tokens, -1])
        return alike(self, longer)

    patch.setattr(Tables, "_alike", all_of_it)


@defect("vllm", "conservation", kinds=("growing",))
def swapped_a_token_short(patch: Patch) -> None:
    moves = Tables._moves

    def short(self: Tables, kind: Any, sources: Any, targets: Any, num_tokens: int) -> list[Move]:
        return moves(self, kind, sources, targets, num_tokens - 1)

    patch.setattr(Tables, "_moves", short)


@defect("vllm", "conservation", kinds=("growing",))
def swapped_out_without_copying(patch: Patch) -> None:
    evict = Tables.evict

    def silent(self: Tables, name: str) -> list[Move]:
        evict(self, name)
        return []

    patch.setattr(Tables, "evict", silent)


@defect("vllm", "conservation", kinds=("growing",))
def swapped_with_two_blocks_exchanged(patch: Patch) -> None:
    moves = Tables._moves

    def crossed(self: Tables, kind: Any, sources: list[int], targets: list[int], num_tokens: int) -> list[Move]:
        return moves(self, kind, [*sources[1:2], *sources[:1], *sources[2:]], targets, num_tokens)

    patch.setattr(Tables, "_moves", crossed)


@defect("vllm", "progress", kinds=("growing",))
def returns_with_a_token_too_many(patch: Patch) -> None:
    """A swapped sequence claims KV for its last token too, which has never been computed: nothing is missing."""
    missing = Paged.missing

    def claiming(self: Paged, sequence: Sequence) -> tuple[Span, ...]:
        (span,) = missing(self, sequence)
        return (Span(span.start + (sequence.id in self.tables.away), span.stop),)

    patch.setattr(Paged, "missing", claiming)


@defect("vllm", "conservation", "budget", kinds=("growing",))
def dropped_and_taken_for_kept(patch: Patch) -> None:
    """A sequence whose KV was dropped goes on where it was."""
    evict, admit = Tables.evict, Tables.admit
    remembered: dict[str, int] = {}

    def noting(self: Tables, name: str) -> list[Move]:
        remembered[name] = self.cached[name]
        return evict(self, name)

    def trusting(self: Tables, sequence: Sequence, **options: Any) -> list[Move]:
        moves = admit(self, sequence, **options)
        table = self.blocks[sequence.id]
        needed = self.blocks_of(remembered.get(sequence.id, 0)) - len(table)
        if not moves and 0 < needed <= self.promised[sequence.id]:
            self.cached[sequence.id] = remembered[sequence.id]
            table += [self.device.take() for _ in range(needed)]
            self.promised[sequence.id] -= needed
        return moves

    patch.setattr(Tables, "evict", noting)
    patch.setattr(Tables, "admit", trusting)


@defect("vllm", "conservation", kinds=("growing",))
def host_is_not_counted(patch: Patch) -> None:
    usage = Paged.usage
    patch.setattr(Paged, "usage", lambda self: usage(self)._replace(host=0))


@defect("vllm", "conservation")
def shared_blocks_counted_twice(patch: Patch) -> None:
    patch.setattr(Tables, "num_written", lambda self: sum(self.cached[name] for name in self.blocks))


@defect("vllm", "conservation", kinds=("growing",))
def host_blocks_never_given_back(patch: Patch) -> None:
    def arrived(self: Tables, name: str) -> None:
        for block in self.copied.pop(name, ()):
            self.device.give_back(block)
        self.returned.pop(name, None)

    patch.setattr(Tables, "arrived", arrived)


@defect("iteration+paged+paged", "budget")
def promises_forgotten(patch: Patch) -> None:
    """Blocks set aside for the rest of an answer are given to newcomers."""
    patch.setattr(Tables, "num_promised", property(lambda self: 0))


@defect("vllm", "budget", kinds=("growing",))
def room_to_grow_is_optimistic(patch: Patch) -> None:
    patch.setattr(_PagedRoom, "extend", lambda self, sequence: None)
