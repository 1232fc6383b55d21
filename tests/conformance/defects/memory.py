"""What goes wrong in memories that reserve a place for each sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, instead_of, one_slot_less

from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Extent, Move, Proposal
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.contiguous import Contiguous, RunTrial
from minifuse.memory.padded import Padded
from minifuse.memory.slots import slots
from minifuse.memory.slots.slots import Slots


@defect("orca", "conservation")
@instead_of(RunAllocator, "free")
def slot_freed_twice(free: Any, self: RunAllocator, offset: int, size: int) -> None:
    free(self, offset, size)
    free(self, offset, size)


@defect("orca", "conservation")
def slot_never_freed(patch: Patch) -> None:
    patch.setattr(RunAllocator, "free", lambda self, offset, size: None)


@defect("orca", "conservation")
@instead_of(RunAllocator, "allocate")
def runs_overlap(allocate: Any, self: RunAllocator, size: int) -> int | None:
    offset = allocate(self, size)
    return max(0, offset - 1) if offset else offset


@defect("serial", "refuse early", kinds=("few",))
def refuses_too_much(patch: Patch) -> None:
    instead_of(Contiguous, "check")(one_slot_less)(patch)


@defect("orca", "budget")
def cache_too_large(patch: Patch) -> None:
    init = KVStorage.__init__
    patch.setattr(
        KVStorage, "__init__", lambda self, config, slots, *rest, **more: init(self, config, slots + 1, *rest, **more)
    )


@defect("orca", "conservation")
def usage_is_fiction(patch: Patch) -> None:
    usage = Contiguous.usage
    patch.setattr(Contiguous, "usage", lambda self: usage(self)._replace(used=0))


@defect("orca", "budget", "conservation")
@instead_of(RunTrial, "take")
def room_is_optimistic(take: Any, self: RunTrial, sequence: Sequence, growing: bool) -> None:
    """One that does not fit gets the first slots, whoever has them."""
    if take(self, sequence, growing):
        self.extents[sequence.id] = Extent(0, sequence.request.max_cached)


@defect("fusion", "conservation")
@instead_of(Slots, "_shuffle")
def shuffled_without_copying(shuffled: Any, self: Slots) -> tuple[Any, ...]:
    shuffled(self)
    return ()


@defect("vllm", "ghost", kinds=("growing",))
@defect("fusion", "ghost")
def copied_one_token_short(patch: Patch) -> None:
    move = TieredStorage.move
    patch.setattr(
        TieredStorage,
        "move",
        lambda self, what, layer=None: move(self, what._replace(num_tokens=what.num_tokens - 1), layer),
    )


@defect("fusion", "conservation")
@instead_of(slots, "shuffle")
def shuffled_onto_the_living(gather: Any, live: Any, fixed: Any, num_buffers: int) -> Any:
    """The copies go to the last buffers of the window, whatever lies there."""
    found = gather(live, fixed, num_buffers)
    ends = range(found.offset + found.size - len(found.moves), found.offset + found.size)
    return found._replace(moves=tuple(zip((source for source, _ in found.moves), ends, strict=True)))


@defect("fusion", "conservation", kinds=("few", "crowd"), batching__preprocess="worker")
@instead_of(Slots, "place")
def shuffled_from_under_a_worker(place: Any, self: Slots, proposal: Proposal, now: float) -> Any:
    """The main stream closes up over all sequences in memory, also those that another worker is computing."""
    placement = place(self, proposal, now)
    running = {work.sequence for work in proposal.work}
    slot = min(self.slot(name) for name in running)
    places, cached = self.books.places, self.books.cached
    other = next((name for name in places if name not in running and cached.get(name)), None)
    if other is None or slot == 0 or (slot - 1) * self.width in {e.offset for e in places.values()}:
        return placement
    move = Move("shuffle", places[other].offset, (slot - 1) * self.width, cached[other])
    places[other] = self._extent(slot - 1)
    return replace(placement, moves=(*placement.moves, move))


@defect("fusion", "conservation", kinds=("few", "crowd"))
def given_away_before_it_is_copied(patch: Patch) -> None:
    """A slot counts as free as soon as its copy is planned: a pre-processing worker may write into it first."""
    patch.setattr(Slots, "leaving", property(lambda self: {}, lambda self, slots: None), raising=False)


@defect("fusion", "budget", "conservation")
def a_slot_too_many(patch: Patch) -> None:
    """The last slot lies behind the end of memory."""
    free, room = Slots._free_slots, Slots.room
    patch.setattr(Slots, "_free_slots", lambda self: [*free(self), self.slots])
    patch.setattr(Slots, "room", lambda self: slots.SlotTrial(room(self).free + 1, ""))


@defect("orca", "conservation")
@instead_of(Contiguous, "usage")
def usage_claims_a_token_too_many(usage: Any, self: Contiguous) -> KVUsage:
    right: KVUsage = usage(self)
    return right._replace(used=right.used + (0 < right.used < right.reserved))


@defect("static", "conservation")
@instead_of(Padded, "usage")
def usage_claims_a_column_too_many(usage: Any, self: Padded) -> KVUsage:
    right: KVUsage = usage(self)
    return right._replace(used=min(right.reserved, right.used + self.shape.rows))


@defect("orca", "conservation")
@instead_of(Contiguous, "usage")
def usage_claims_all_of_memory(usage: Any, self: Contiguous) -> KVUsage:
    """Where anything is reserved, all of it is."""
    right: KVUsage = usage(self)
    return right._replace(reserved=right.capacity if right.reserved else 0)
