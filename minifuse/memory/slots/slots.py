"""Adjacent buffers of equal width, kept adjacent by the shuffle (Flover, V-B, V-C)."""

from collections.abc import Collection
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
from minifuse.memory.slots.shuffle import shuffle
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory


class SlotTrial(Trial):
    """Admits as many newcomers as there are free slots."""

    def __init__(self, free: int, full: str) -> None:
        super().__init__()
        self.free, self.full = free, full  # number of free slots; the reason's text if there are too few

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        full = len(self.settled) == self.free
        return Reason("memory-full", sequence.id, f"not admitted: {self.full}") if full else None


class Slots(Memory):
    """Gives each prompt a slot of equal width; the running sequences' slots form one region.

    The region is the paper's (buffer_offset, buffer_size). A newcomer takes the free slot nearest to the region: a hole
    inside, or the next slot on either side. When a sequence leaves a hole inside the region, the shuffle gathers the
    other sequences before the next iteration. Without the shuffle, the hole is computed as an idle slot until it lies
    at an end of the region.

    >>> # 4 slots of 5 tokens, sequences in slots 0, 1 and 2; the one in slot 1 has just finished:
    >>> # shuffle on:  slot 2's tokens are copied to slot 1, and the region is [0, 2)
    >>> # shuffle off: the region stays [0, 3), slot 1 is idle until a newcomer takes it or a neighbour leaves
    >>> # shrink off, too: the region stays [0, 3) even then, until no sequence runs (the paper's Fig. 5)
    """

    name = "slots"
    offers: ClassVar[frozenset[str]] = frozenset({"extents", "slots"})

    @dataclass(frozen=True)
    class Options:
        slots: int = option(
            8, "prompts in memory at once; each has an equal part of the KV memory", minimum=1, batch_size=True
        )
        shuffle: bool = option(True, "gather the running requests' slots when one leaves a hole")
        shrink: bool = option(
            True, "give up slots at an end of the region; off, which needs shuffle=off: keep them (Fig. 5)"
        )

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        if self.options.shuffle and not self.options.shrink:
            raise UsageError(
                "memory.shrink is off and memory.shuffle on, which gathers the region: turn memory.shuffle off, too."
            )
        self.books = Places[Extent]()
        self.slots: int = self.options.slots
        self.width: int = capacity // self.slots
        if self.width < 1:
            raise UsageError(
                f"The memory is to have {self.slots} slots, and it holds {capacity} tokens: lower memory.slots or "
                "raise --kv-memory."
            )
        self.fused: set[str] = set()  # sequences whose slots make up the region
        self.region = 0, 0  # its first slot, and the one behind its last
        self.leaving: dict[int, str] = {}  # slots that a plan still has to copy from -> their sequence

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
        free = self.slots - len(self.books.places) - len(self.leaving)
        return SlotTrial(free, f"all {self.slots} slots are taken")

    def slot(self, sequence_id: str) -> int:
        """Return the number of the slot that holds a sequence's KV."""
        return self.books.places[sequence_id].offset // self.width

    def _free_slots(self) -> list[int]:
        taken = {extent.offset // self.width for extent in self.books.places.values()}.union(self.leaving)
        return [slot for slot in range(self.slots) if slot not in taken]

    def _extent(self, slot: int) -> Extent:
        return Extent(slot * self.width, self.width)

    def _admit(self, newcomers: tuple[Sequence, ...]) -> None:
        """Give newcomers the free slots nearest to the region."""
        start, stop = self._bounds()
        nearest = sorted(self._free_slots(), key=lambda slot: (max(start - slot, 0, slot - stop + 1), slot < start))
        for newcomer, slot in zip(newcomers, nearest, strict=False):
            self.books.places[newcomer.id] = self._extent(slot)

    def place(self, proposal: Proposal, now: float) -> Placement:
        if proposal.admit or proposal.evict:
            settle(proposal, SlotTrial, self.room)
            self._admit(proposal.admit)
        if proposal.phase is Phase.PREPROCESSING:  # runs beside the main stream, whose region it leaves as it is
            return Placement(self.books.of(proposal.work))
        self.fused = {work.sequence for work in proposal.work}
        moves: tuple[Move, ...] = ()
        start, stop = self.region = self._bounds()
        if self.options.shuffle and stop - start > len(self.fused):  # there are holes
            moves = self._shuffle()
            self.region = 0, 0
            start, stop = self.region = self._bounds()
        return Placement(self.books.of(proposal.work), Region(start, stop - start, self.width), moves)

    def _bounds(self) -> tuple[int, int]:
        """Return the region's bounds: the running sequences' slots, and without `shrink` the last region's."""
        slots = [self.slot(name) for name in self.fused]
        if not slots:
            return 0, 0
        start, stop = self.region
        if self.options.shrink or start == stop:
            return min(slots), max(slots) + 1
        return min(start, *slots), max(stop, *(slot + 1 for slot in slots))

    def _shuffle(self) -> tuple[Move, ...]:
        """Gather the region's slots around slots that other workers may be using.

        The source slot of a copy becomes free only when the plan has completed.
        """
        live = {self.slot(name): name for name in self.fused}
        fixed = sorted({*range(self.slots)}.difference(live, self._free_slots()))
        moves = []
        for source, target in self._moves(sorted(live), fixed):
            name = live[source]
            self.books.places[name] = self._extent(target)
            if num_tokens := self.books.cached.get(name, 0):
                moves.append(Move("shuffle", source * self.width, target * self.width, num_tokens))
                self.leaving[source] = name
        return tuple(moves)

    def _moves(self, live: Seq[int], fixed: Seq[int]) -> Seq[tuple[int, int]]:
        """Return the copies (from, to) that gather the live slots without touching the fixed ones."""
        return shuffle(live, fixed, self.slots).moves

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        for move in plan.moves:
            self.leaving.pop(move.source // self.width, None)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if self.books.release(sequence.id) is not None:
            self.fused.discard(sequence.id)
            if not self.fused:
                self.region = 0, 0
            self.leaving = {slot: name for slot, name in self.leaving.items() if name != sequence.id}

    def usage(self) -> KVUsage:
        reserved = (len(self.books.places) + len(self.leaving)) * self.width
        return KVUsage(self.books.num_written, reserved, self.capacity)

    def check_integrity(self) -> None:
        extents, slots = self.books.places, map(self._extent, range(self.slots))
        taken = [*extents.values(), *map(self._extent, self.leaving)]
        if not self.fused <= extents.keys() or len({*taken}.intersection(slots)) < len(taken):
            what = f"{extents} and {self.leaving}, still to be copied from, share one or leave the {self.slots} slots"
            raise LawBroken("conservation", what)
