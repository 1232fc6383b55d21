"""What goes wrong in memories that reserve a place for each sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, instead_of, one_slot_less

from minifuse.memory import slots
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.contiguous import Contiguous
from minifuse.memory.fixed import RunRoom
from minifuse.memory.padded import Padded
from minifuse.memory.reserved import ReservedMemory
from minifuse.memory.slots import Slots
from minifuse.memory.storage import KVStorage
from minifuse.plan import Move, Proposal
from minifuse.report import KVUsage


@defect("orca", "conservation")
@instead_of(Contiguous, "_free")
def slot_freed_twice(free: Any, self: Contiguous, name: str, extent: Any) -> None:
    free(self, name, extent)
    free(self, name, extent)


@defect("orca", "conservation")
def slot_never_freed(patch: Patch) -> None:
    patch.setattr(Contiguous, "_free", lambda self, name, extent: None)


@defect("orca", "conservation")
@instead_of(RunAllocator, "allocate")
def runs_overlap(allocate: Any, self: RunAllocator, size: int) -> int | None:
    offset = allocate(self, size)
    return max(0, offset - 1) if offset else offset


@defect("serial", "refuse early", kinds=("few",))
def refuses_too_much(patch: Patch) -> None:
    instead_of(ReservedMemory, "check")(one_slot_less)(patch)


@defect("orca", "budget")
def cache_too_large(patch: Patch) -> None:
    init = KVStorage.__init__
    patch.setattr(
        KVStorage, "__init__", lambda self, config, slots, *rest, **more: init(self, config, slots + 1, *rest, **more)
    )


@defect("orca", "conservation")
def usage_is_fiction(patch: Patch) -> None:
    patch.setattr(ReservedMemory, "num_used", property(lambda self: 0))


@defect("orca", "budget", "conservation")
def room_is_optimistic(patch: Patch) -> None:
    patch.setattr(RunRoom, "admit", lambda self, sequence, growing=False: None)


@defect("fusion", "conservation")
@instead_of(Slots, "_shuffle")
def shuffled_without_copying(shuffled: Any, self: Slots, proposal: Proposal) -> tuple[Any, ...]:
    shuffled(self, proposal)
    return ()


@defect("vllm", "ghost", kinds=("growing",))
@defect("fusion", "ghost")
def copied_one_token_short(patch: Patch) -> None:
    move = KVStorage.move
    patch.setattr(
        KVStorage,
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
    other = next((name for name in self.extents if name not in running and self.cached.get(name)), None)
    if other is None or slot == 0 or (slot - 1) * self.width in {e.offset for e in self.extents.values()}:
        return placement
    move = Move("shuffle", self.extents[other].offset, (slot - 1) * self.width, self.cached[other])
    self.extents[other] = self._extent(slot - 1)
    return replace(placement, moves=(*placement.moves, move))


@defect("fusion", "conservation", kinds=("few", "crowd"))
def given_away_before_it_is_copied(patch: Patch) -> None:
    """A slot counts as free as soon as its copy is planned: a pre-processing worker may write into it first."""
    patch.setattr(Slots, "leaving", property(lambda self: {}, lambda self, slots: None), raising=False)


@defect("fusion", "budget", "conservation")
def a_slot_too_many(patch: Patch) -> None:
    patch.setattr(Slots, "room", lambda self: slots._Room(self.slots + 1 - len(self.extents), self.slots))


@defect("orca", "conservation")
@defect("fusion", "conservation")
@instead_of(ReservedMemory, "usage")
def usage_claims_a_token_too_many(usage: Any, self: ReservedMemory) -> KVUsage:
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
