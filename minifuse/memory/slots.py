"""Adjacent buffers of equal width, kept adjacent by the shuffle (Flover, V-B, V-C)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.plan import Extent, Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Request, Sequence
from minifuse.core.shapes import Region
from minifuse.core.stages import option
from minifuse.memory.places import Places
from minifuse.memory.shuffle import shuffle
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory

__all__ = ["Slots"]


class SlotTrial(Trial):
    """Counts the slots that are free."""

    def __init__(self, free: int, slots: int) -> None:
        super().__init__()
        self.free = free
        self.slots = slots

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        if not self.free:
            return Reason("memory-full", sequence.id, f"not admitted: all {self.slots} slots are taken")
        self.free -= 1
        return None


class Slots(Memory):
    """Slots of equal width, one for each prompt; the running ones form one region (buffer_offset, buffer_size).

    A newcomer takes the free slot nearest to the region: a hole inside it, which without the shuffle is computed
    anyway, or the next slot beside it. When a sequence leaves a hole inside the region, the shuffle gathers the
    remaining ones before the next iteration; without the shuffle the hole is computed, as idle, until it lies at an end
    of the region.

    >>> # 4 slots of 5 tokens, sequences in slots 0, 1 and 2; the one in slot 1 has just finished:
    >>> # shuffle on:  slot 2's tokens are copied to slot 1, and the region is [0, 2)
    >>> # shuffle off: the region stays [0, 3), slot 1 is idle until a newcomer takes it or a neighbour leaves
    """

    name = "slots"
    offers: ClassVar[frozenset[str]] = frozenset({"extents", "slots"})

    @dataclass(frozen=True)
    class Options:
        slots: int = option(
            8, "prompts in memory at once; each has an equal part of the KV memory", minimum=1, batch_size=True
        )
        shuffle: bool = option(True, "gather the running requests' slots when one leaves a hole")

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        self.books = Places[Extent]()
        self.slots: int = self.options.slots
        self.width: int = capacity // self.slots
        if self.width < 1:
            raise UsageError(
                f"The memory is to have {self.slots} slots, and it holds {capacity} tokens: lower memory.slots or "
                "raise --kv-memory."
            )
        self.fused: set[str] = set()  # sequences whose slots make up the region
        self.leaving: dict[int, str] = {}  # slots that a plan still has to copy from -> their last sequence

    def check(self, *prompts: Request) -> None:
        if len(prompts) > self.slots:
            raise RequestRefused(
                f"Request {prompts[0].group!r} has {len(prompts)} prompts, and the memory has slots for {self.slots}: "
                "give it fewer prompts, or raise memory.slots."
            )
        for request in prompts:
            if request.max_cached > self.width:
                raise RequestRefused(
                    f"Request {request.id!r} may need KV for {request.max_cached} tokens and each of the {self.slots} "
                    f"slots holds {self.width}: shorten the prompt, lower max_new_tokens or memory.slots, or raise "
                    "--kv-memory."
                )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

    def room(self) -> SlotTrial:
        return SlotTrial(self.slots - len(self.books.places) - len(self.leaving), self.slots)

    def slot(self, sequence_id: str) -> int:
        """The number of the slot that holds a sequence's KV."""
        slot: int = self.books.places[sequence_id].offset // self.width
        return slot

    def _free_slots(self) -> list[int]:
        taken = {extent.offset // self.width for extent in self.books.places.values()}
        return [slot for slot in range(self.slots) if slot not in taken and slot not in self.leaving]

    def _extent(self, slot: int) -> Extent:
        return Extent(slot * self.width, self.width)

    def _admit(self, newcomers: tuple[Sequence, ...]) -> None:
        """Give newcomers the free slots nearest to the region."""
        places = self.books.places
        start, stop = self._bounds([places[name] for name in self.fused]) if self.fused else (0, 0)
        nearest = sorted(
            self._free_slots(), key=lambda slot: (max(start - slot, 0, slot - stop + 1), slot < start, slot)
        )
        for newcomer, slot in zip(newcomers, nearest, strict=False):
            places[newcomer.id] = self._extent(slot)

    def place(self, proposal: Proposal, now: float) -> Placement:
        if proposal.admit or proposal.evict:
            settle(proposal, SlotTrial, self.room)
            self._admit(proposal.admit)
        extents = self.books.of(proposal.work)
        if proposal.phase is Phase.PREPROCESSING:
            return Placement(extents)  # runs beside the main stream, and leaves its region alone
        moves: tuple[Move, ...] = ()
        start, stop = self._bounds(extents)
        if self.options.shuffle and stop - start > len(set(extents)):  # there are holes
            moves = self._shuffle(proposal)
            extents = self.books.of(proposal.work)
            start, stop = self._bounds(extents)
        self.fused = {work.sequence for work in proposal.work}
        return Placement(extents, Region(start, stop - start, self.width), moves)

    def _bounds(self, extents: Iterable[Extent]) -> tuple[int, int]:
        """The slots from the first of these to the last, as [start, stop)."""
        offsets = [extent.offset for extent in extents]
        return min(offsets) // self.width, max(offsets) // self.width + 1

    def _shuffle(self, proposal: Proposal) -> tuple[Move, ...]:
        """Gather the slots of the proposed work; other workers may be using the others.

        A slot that is copied from is free only when the copy has been made, which is when the plan has run.
        """
        live = {self.slot(work.sequence): work.sequence for work in proposal.work}
        fixed = [self.slot(name) for name in self.books.places if self.slot(name) not in live] + [*self.leaving]
        moves = []
        for source, target in self._moves(sorted(live), fixed):
            name = live[source]
            self.books.places[name] = self._extent(target)
            if num_tokens := self.books.cached.get(name, 0):
                moves.append(Move("shuffle", source * self.width, target * self.width, num_tokens))
                self.leaving[source] = name
        return tuple(moves)

    def _moves(self, live: Seq[int], fixed: Seq[int]) -> Seq[tuple[int, int]]:
        """The slots to copy, (from, to), to gather the live ones around fixed ones."""
        return shuffle(live, fixed, self.slots).moves

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        for move in plan.moves:
            self.leaving.pop(move.source // self.width, None)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if self.books.release(sequence.id) is not None:
            self.fused.discard(sequence.id)
            self.leaving = {slot: name for slot, name in self.leaving.items() if name != sequence.id}

    def usage(self) -> KVUsage:
        reserved = (len(self.books.places) + len(self.leaving)) * self.width
        return KVUsage(self.books.num_written, reserved, self.capacity)

    def check_integrity(self) -> None:
        extents = self.books.places
        if any(slot in self.leaving for slot in map(self.slot, extents)) or not self.fused <= extents.keys():
            raise LawBroken(
                "conservation", f"slots {self.leaving} are still to be copied from, and {extents} are owned"
            )
        offsets = [extent.offset for extent in extents.values()]
        if len(set(offsets)) < len(offsets):
            raise LawBroken("conservation", "two sequences share a slot")
        for name, extent in extents.items():
            slot, inside = divmod(extent.offset, self.width)
            if inside or extent.capacity != self.width or not 0 <= slot < self.slots:
                raise LawBroken("conservation", f"{name} has {extent}, which is not one of the {self.slots} slots")
        for name, cached in self.books.cached.items():
            if cached > self.width:
                raise LawBroken("conservation", f"{name} reaches beyond its slot")
