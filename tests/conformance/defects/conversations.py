"""What goes wrong in memory that keeps conversations on two tiers (Pensieve)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from conformance.defects.harness import defect, instead_of

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.unified import Unified
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Move, Placement, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.execute.layers import LayerByLayer
from minifuse.execute.link import Link
from minifuse.memory import Tiered
from minifuse.memory.tiered.chunks import Chunk, Idle
from minifuse.memory.tiered.eviction import CostAware
from minifuse.memory.tiered.owners import Owners, owner_of
from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.memory.tiered.tiered import TieredTrial
from minifuse.memory.tiered.tiers import Tiers
from minifuse.testing.texts.scenario import STEEP

talk = partial(defect, "pensieve", kinds=("talk",))


@defect("pensieve", "conservation", kinds=("few",))
@instead_of(Owners, "_forget")
def a_request_without_a_conversation_is_kept(forget: Any, self: Owners, owner: Any) -> None:
    """After the last request nothing may be left, and nothing is in use: it is the books that notice."""


@talk("exact", "conservation", "ghost", "counting")
@instead_of(Owners, "missing")
def one_token_too_many_is_taken_for_computed(missing: Any, self: Owners, sequence: Sequence) -> tuple[Span, ...]:
    *holes, (start, stop) = missing(self, sequence)
    if start and sequence.id not in self.running:
        start = min(start + 1, stop - 1)
    return (*holes, Span(start, stop))


@talk("exact", "conservation", "counting")
@instead_of(Owners, "missing")
def dropped_tokens_are_not_computed(missing: Any, self: Owners, sequence: Sequence) -> tuple[Span, ...]:
    return missing(self, sequence)[-1:]  # type: ignore[no-any-return]


@talk("exact", "conservation", "ghost", "counting", "layout")
@instead_of(Owners, "missing")
def the_two_spans_are_taken_for_one(missing: Any, self: Owners, sequence: Sequence) -> tuple[Span, ...]:
    """As if what was dropped lay just before the new prompt."""
    *holes, tail = missing(self, sequence)
    dropped = sum(hole.stop - hole.start for hole in holes)
    return (Span(max(0, tail.start - dropped), tail.stop),)


@talk("conservation")
@instead_of(Tiers, "copy_ahead")
def a_block_is_given_out_while_its_copy_is_under_way(copy: Any, self: Tiers, *arguments: Any) -> list[Move]:
    moves: list[Move] = copy(self, *arguments)
    for move in moves:
        chunk = self.by_host_block[move.target // self.size]
        chunk.copying = False
        self.on_both.add(chunk)
    return moves


@talk("conservation", "budget", "value", memory__ahead=0.6)
@instead_of(Tiers, "landed")
def host_blocks_are_never_given_back(landed: Any, self: Tiers, moves: Any) -> None:
    landed(self, [move for move in moves if move.target_tier == "host"])


@talk("conservation", memory__transfer="overlapped", batching__max_batch=4)
@instead_of(Tiers, "fetch")
def a_host_block_is_free_before_it_has_been_copied(
    fetch: Any, self: Tiers, chunk: Chunk, now: float, moves: Any
) -> Any:
    block = chunk.host if chunk.device is None else None
    fetched = fetch(self, chunk, now, moves)
    if block is not None:
        self.host.free.insert(0, block)
    return fetched


@talk("counting", "exact", "conservation", "ghost")
@instead_of(Tiers, "fetch")
def what_is_on_the_host_is_not_swapped_in(fetch: Any, self: Tiers, chunk: Chunk, now: float, moves: Any) -> Any:
    mine: list[Move] = []
    block = fetch(self, chunk, now, mine)
    moves += [move for move in mine if move.kind != "swap_in"]
    self.landed([move for move in mine if move.kind == "swap_in"])
    return block


@talk("budget", batching__max_tokens=6)
@instead_of(Unified, "_iteration_full")
def the_threshold_of_tokens_is_forgotten(full: Any, self: Unified, *arguments: Any) -> None:
    """Newcomers join whatever the iteration has."""


@talk("exact", "conservation", memory__share=True)
@instead_of(Owners, "_digest")
def chunks_of_the_same_tokens_are_shared_behind_any_text(digest: Any, self: Owners, sequence: Sequence) -> list[bytes]:
    size, tokens = self.tiers.size, sequence.tokens
    self._digests[sequence.id] = [repr(tokens[i : i + size]).encode() for i in range(0, len(tokens) - size + 1, size)]
    return self._digests[sequence.id]


@talk("counting")
@instead_of(Owners, "fill")
def what_is_swapped_in_is_told_as_found_on_the_device(fill: Any, self: Owners, *arguments: Any) -> Any:
    reuse = fill(self, *arguments)
    return reuse._replace(on_device=reuse.num_tokens, on_host=0)


@talk("conservation", memory__share=False)
@instead_of(Tiered, "usage")
def what_is_kept_is_counted_as_nothing(usage: Any, self: Tiered) -> KVUsage:
    found: KVUsage = usage(self)
    return found._replace(kept=0, kept_on_host=0)


@talk("conservation")
@instead_of(Tiered, "usage")
def what_is_kept_counts_as_used(usage: Any, self: Tiered) -> KVUsage:
    found: KVUsage = usage(self)
    return found._replace(used=found.used + found.kept, reserved=max(found.reserved, found.used + found.kept), kept=0)


@talk("budget", "conservation", "progress")
@instead_of(TieredTrial, "take")
def what_a_newcomer_finds_is_counted_as_free_as_well(
    take: Any, self: TieredTrial, sequence: Sequence, growing: bool
) -> Any:
    count, before = self.count, self.count.free
    full = take(self, sequence, growing)
    if full is None:
        found = len(self.found[sequence.id])
        count.free = max(count.free, before - count.whole[sequence.id] + found)
    return full


@talk("ghost", "exact", "conservation")
@instead_of(Tiered, "place")
def the_parts_of_a_sequence_have_tables_of_their_own(place: Any, self: Tiered, *arguments: Any) -> Placement:
    """The tail is read from a table without the blocks before it."""
    placement: Placement = place(self, *arguments)
    seen: set[Any] = set()
    places = []
    for one in placement.places:
        places.append(one._replace(blocks=one.blocks[::-1]) if one in seen else one)  # type: ignore[union-attr]
        seen.add(one)
    return replace(placement, places=tuple(places))


@talk("value", memory__share=False)
@instead_of(Idle, "_worth")
def what_is_worth_most_goes_first(worth: Any, self: Idle, *arguments: Any) -> Any:
    value, *others = worth(self, *arguments)
    return -value, *others


@talk("value", memory__share=False, memory__eviction="cost", memory__profile=STEEP)
@instead_of(Profile, "cost")
def every_chunk_costs_the_same(cost: Any, self: Profile, num_context: int) -> float:
    return 1.0


@talk("value", memory__share=False, memory__eviction="cost", memory__profile=STEEP)
@instead_of(CostAware, "value")
def the_time_does_not_count(value: Any, self: CostAware, num_context: int, idle_s: float) -> float:
    return self.profile.cost(num_context)


@talk("value", memory__share=False, memory__eviction="lru")
@instead_of(Tiers, "leave")
def a_chunk_is_taken_to_have_been_idle_since_it_was_made(leave: Any, self: Tiers, chunk: Chunk, now: float) -> None:
    leave(self, chunk, -chunk.number / 1e9)


@talk("value", memory__share=False)
@instead_of(Tiers, "touch")
def a_request_that_waits_does_not_count_as_activity(touch: Any, self: Tiers, chunk: Chunk, now: float) -> None:
    """The KV that it is about to read is reclaimed as if its user had left."""


@talk("value", memory__share=False, memory__host=15, memory__ahead=0.6)
@instead_of(Tiers, "take")
def what_has_no_copy_is_taken_before_what_has_one(take: Any, self: Tiers, now: float, moves: Any) -> int:
    both, self.on_both = self.on_both, Idle(CostAware(ASSUMED), self.size)
    try:
        return take(self, now, moves)  # type: ignore[no-any-return]
    except LawBroken:
        self.on_both = both
        return take(self, now, moves)  # type: ignore[no-any-return]
    finally:
        self.on_both = both


@talk("value", memory__share=False, memory__host=30, memory__ahead=0.25)
@instead_of(Tiers, "copy_ahead")
def all_that_is_idle_is_copied_ahead(copy: Any, self: Tiers, threshold: int, *arguments: Any) -> list[Move]:
    return copy(self, self.device.num_blocks, *arguments)  # type: ignore[no-any-return]


@talk("value", memory__share=False, memory__host=30, memory__ahead=0.6)
@instead_of(Tiers, "copy_ahead")
def nothing_is_copied_ahead(copy: Any, self: Tiers, *arguments: Any) -> list[Move]:
    return []


@talk("budget", memory__share=False, memory__reserve=0.3)
@instead_of(TieredTrial, "__init__")
def newcomers_take_the_reserve(init: Any, self: TieredTrial, books: Owners, reserve: int) -> None:
    init(self, books, 0)


@talk("queue", batching__max_batch=4)
@instead_of(QueuePolicy, "victims")
def the_oldest_is_suspended_first(victims: Any, self: QueuePolicy, running: Any) -> Any:
    return running


@talk("together", batching__unify=False)
@instead_of(Unified, "propose")
def prompts_run_beside_single_tokens_with_unify_off(propose: Any, self: Unified, *arguments: Any) -> Any:
    _, now, memory = arguments
    return self._fill(now, memory, self._missing(memory), self._iteration_full)


@talk("time", memory__transfer="overlapped")
@instead_of(LayerByLayer, "_arrived")
def the_first_layer_waits_for_the_copies_of_all(arrived: Any, self: LayerByLayer, turn: int) -> float:
    here = [arrived(self, each) for each in range(turn, turn + len(self.needed))]
    return max(here)


@talk("time", memory__chunk=1, memory__host=30, memory__ahead=0.6)
@instead_of(Link, "run")
def evictions_go_before_retrievals(run: Any, self: Link, plan: Any, computing_s: float, now: float) -> Any:
    """A plan that swaps in waits for all that was to be copied ahead of time."""
    self.advance(now)
    while self._queue and any(move.crosses for move in plan.moves):
        first = self._queue.pop(0)
        self._free_s = max(self._free_s, first.since_s) + first.seconds
        if first.is_last:
            self._landing.append((self._free_s, first.plan))
    return run(self, plan, computing_s, now)


@talk("alike", memory__share=True)
@instead_of(Owners, "receive")
def nothing_is_found_that_others_have(receive: Any, self: Owners, sequence: Sequence) -> None:
    """No digest is taken of a newcomer's text."""


@talk("alike", memory__share=True, memory__chunk=2)
@instead_of(Tiers, "leave")
def what_a_conversation_keeps_is_not_shared(leave: Any, self: Tiers, chunk: Chunk, now: float) -> None:
    """A beginning is found only while a sequence runs that has it."""
    leave(self, chunk, now)
    if not chunk.users and self.alike.get(chunk.digest) is chunk:
        del self.alike[chunk.digest]


@talk("alike", memory__share=True, memory__chunk=2)
@instead_of(Owners, "found")
def only_the_first_chunk_is_shared(found: Any, self: Owners, sequence: Sequence) -> dict[int, Chunk]:
    own = self.owners.get(owner_of(sequence))
    return {
        index: chunk for index, chunk in found(self, sequence).items() if index < 1 or (own and index in own.chunks)
    }
