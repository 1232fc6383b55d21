"""The contract of a memory (docs/stages.md): what its methods may return, and those of the room it gives."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from minifuse.contract import (
    Contract,
    Method,
    check_attribute,
    check_cover,
    check_nothing,
    check_reason,
    check_signature,
    check_tuple,
    is_whole,
)
from minifuse.errors import LawBroken, RequestRefused
from minifuse.fault import Wrong, blamed, is_own, shown
from minifuse.layout import Rectangle, Region, Shape, StateRows
from minifuse.place import Extent, Pages, Place, Runs, State
from minifuse.plan import Move, Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Phase, Sequence
from minifuse.stages import Room
from minifuse.work import Span, Work

__all__ = ["MemoryContract"]

PLACES: dict[str, tuple[type[Any], ...]] = {  # by what a memory offers
    "extents": (Extent,),
    "slots": (Extent,),
    "rectangle": (Extent, Runs),
    "pages": (Pages,),
    "states": (State,),
    "rows": (State,),
}
SHAPES: dict[str, type[Any]] = {"rectangle": Rectangle, "slots": Region}
KINDS = ("shuffle", "copy", "swap_in", "swap_out", "upload", "offload", "embed")
MOMENTS = ("first", "before", "after", "behind")
ROOM = {"admit": Method(("sequence", "sequence, growing=")), "extend": Method(("sequence",))}
ROOM["evict"] = Method(("sequence",))


class MemoryContract(Contract):
    """What a memory was told and has placed, and whether what it places next can be computed."""

    methods: ClassVar[dict[str, Method]] = {
        "check": Method(("request", "request, request"), (RequestRefused,)),
        "receive": Method(("sequence",), (RequestRefused,)),
        "missing": Method(("sequence",), note="it is asked of requests that wait, too"),
        "room": Method(("",)),
        "place": Method(("proposal, now",)),
        "commit": Method(("plan, sampled, now",)),
        "release": Method(("sequence, now",), note="it is also called for a request that was never admitted"),
        "ahead": Method(("now",)),
        "landed": Method(("moves, now",)),
        "usage": Method(("",)),
        "check_integrity": Method(("",), (LawBroken,)),
    }

    pure = frozenset({"missing", "room", "usage"})

    def __init__(self, cls: type[Any]) -> None:
        super().__init__(cls)
        self.known: dict[str, Sequence] = {}
        self.num_plans: Counter[str] = Counter()  # in flight, of each sequence
        self.room_type: type[Any] | None = None  # of the last room, whose methods take what they are called with
        self.places: dict[str, Place] = {}  # where each sequence was last, while nothing has been moved

    def made(self, stage: Any, *arguments: Any) -> None:
        given = arguments[0]
        whole = f"it was given {given} slots: give a whole number from 1 to {given}"
        check_attribute(stage, "capacity", lambda v: is_whole(v, 1) and v <= given, whole)
        check_attribute(stage, "host_capacity", is_whole, "give a whole number, 0 if nothing is kept on the host")

    def check(self, memory: Any, result: Any, *prompts: Any) -> None:
        check_nothing(result, "check raises RequestRefused or returns nothing")

    def receive(self, memory: Any, result: Any, sequence: Sequence) -> None:
        check_nothing(result, "receive raises RequestRefused or returns nothing")
        self.known[sequence.id] = sequence

    def release(self, memory: Any, result: Any, sequence: Sequence, now: float) -> None:
        check_nothing(result)
        self.known.pop(sequence.id, None)
        self.num_plans.pop(sequence.id, None)
        self.places.pop(sequence.id, None)

    def check_integrity(self, memory: Any, result: Any) -> None:
        check_nothing(result, "check_integrity raises LawBroken or returns nothing")

    def missing(self, memory: Any, result: Any, sequence: Sequence) -> tuple[Span, ...]:
        check_tuple("", result, Span, "Span(start, stop)")
        if sequence.graph is not None:
            return result  # type: ignore[no-any-return]  # it has been checked
        reached, length = -1, len(sequence)
        for start, stop in result:
            if not is_whole(start) or not is_whole(stop) or not reached < start < stop <= length:
                allowed = f"spans [start, stop) of the {length} tokens of {sequence.id!r}, in order, none empty"
                raise Wrong(shown(result), f"give {allowed}")
            reached = stop
        if reached != length and not self.num_plans[sequence.id]:
            last = f"the last of the {length} tokens of {sequence.id!r} is always missing: the next is sampled from it"
            raise Wrong(shown(result), last, "progress")
        return result  # type: ignore[no-any-return]  # it has been checked

    def room(self, memory: Any, result: Any) -> Any:
        if is_own(type(result)):
            return result
        for name, method in ROOM.items() if type(result) is not self.room_type else ():
            if not hasattr(type(result), name):
                raise Wrong(shown(result), "give a Room: an object with admit, extend and evict (minifuse.stages)")
            check_signature(type(result), name, method.calls)
        self.room_type = type(result)
        return CheckedRoom(result)

    def usage(self, memory: Any, result: Any) -> KVUsage:
        return _usage(memory, result)

    def landed(self, memory: Any, result: Any, moves: tuple[Move, ...], now: float) -> KVUsage:
        return _usage(memory, result)

    def commit(self, memory: Any, result: Any, plan: Plan, *arguments: Any) -> KVUsage:
        for name in {*plan.admitted, *plan.sequences}:
            self.num_plans[name] -= 1
        return _usage(memory, result)

    def ahead(self, memory: Any, result: Any, now: float) -> tuple[Move, ...]:
        check_tuple("", result, Move, "Move, an empty one if nothing is to be moved")
        for move in result:
            _check_move("", move, memory, 0)
        if result:
            self.places.clear()
        return result  # type: ignore[no-any-return]  # it has been checked

    # --- placements

    def place(self, memory: Any, result: Any, proposal: Proposal, now: float) -> Placement:
        if not isinstance(result, Placement):
            raise Wrong(shown(result), "give a Placement (minifuse.plan): a place for each piece of work")
        kinds = tuple({kind for offer in memory.offers for kind in PLACES.get(offer, (Extent, Runs, Pages, State))})
        names = " or ".join(sorted(kind.__name__ for kind in kinds))
        check_tuple("a Placement whose places are ", result.places, kinds, f"{names}, as it offers")
        if len(result.places) != len(proposal.work):
            count = f"{len(result.places)} places for {len(proposal.work)} pieces of work"
            raise Wrong(f"a Placement of {count}", "give one for each, in the order of the work")
        check_cover("a Placement whose waves are ", result.waves, len(proposal.work))
        check_tuple("a Placement whose moves are ", result.moves, Move, "Move")
        for move in result.moves:
            _check_move("a Placement with ", move, memory, max(1, len(result.waves)))
        if result.moves or proposal.evict:
            self.places.clear()
        for work, place in zip(proposal.work, result.places, strict=True):
            self._check_place(work, place, memory.capacity)
        self._check_shape(memory, result, proposal)
        if all(isinstance(place, State) for place in result.places):
            _check_states(proposal, result)
        else:
            _check_slots(proposal.work, result.places)
        for work, place in zip(proposal.work, result.places, strict=True):
            if not isinstance(place, State):
                self.places[work.sequence] = place
        for name in {*(sequence.id for sequence in proposal.admit), *(work.sequence for work in proposal.work)}:
            self.num_plans[name] += 1
        return result

    def _check_place(self, work: Work, place: Place, capacity: int) -> None:
        found = f"a Placement with {shown(place)} for {shown(work)}"
        runs: tuple[tuple[int, int], ...]
        if isinstance(place, Extent):
            right, runs = is_whole(place.offset) and is_whole(place.capacity), ((place.offset, place.capacity),)
        elif isinstance(place, Runs):
            runs = place.runs
            right = type(runs) is tuple and all(type(run) is tuple and len(run) == 2 for run in runs)
            right = right and all(is_whole(slot) and is_whole(length, 1) for slot, length in runs)
        elif isinstance(place, Pages):
            right = type(place.blocks) is tuple and all(map(is_whole, place.blocks)) and is_whole(place.size, 1)
            runs = tuple((block * place.size, place.size) for block in place.blocks) if right else ()
        else:
            right = type(place.reads) is tuple and all(map(is_whole, (*place.reads, place.slot)))
            runs = tuple((slot, 1) for slot in (*place.reads, place.slot)) if right else ()
        if not right:
            raise Wrong(found, "slots, blocks and sizes are whole numbers, and lists of them tuples")
        if any(slot + length > capacity for slot, length in runs):
            raise Wrong(found, f"memory has the slots 0 to {capacity - 1}", "budget")
        if isinstance(place, State):
            graph = self.known[work.sequence].graph if work.sequence in self.known else None
            if graph is not None and len(place.reads) != len(graph.topology.reads[work.start]):
                raise Wrong(found, f"the node reads the states of {len(graph.topology.reads[work.start])} others")
            return
        if place.capacity < work.stop:
            raise Wrong(
                found, f"it has {place.capacity} slots: a place holds all tokens up to the last of the work", "layout"
            )
        last = self.places.get(work.sequence)
        if last is None or last is place or not work.start:
            return
        kept = min(work.start, last.capacity)
        if isinstance(last, Extent) and isinstance(place, Extent):
            same = last.offset == place.offset
        else:
            same = [*last.slots(0, kept)] == [*place.slots(0, kept)]
        if not same:
            allowed = f"what it has written lies in {shown(last)}: leave it there, or move it with a Move"
            raise Wrong(found, allowed, "conservation")

    def _check_shape(self, memory: Any, placement: Placement, proposal: Proposal) -> None:
        shape, wanted = placement.shape, [SHAPES[offer] for offer in sorted(memory.offers) if offer in SHAPES]
        if shape is None:
            if wanted and proposal.phase is not Phase.PREPROCESSING:
                names = " or ".join(kind.__name__ for kind in wanted)
                raise Wrong(
                    "a Placement without a shape", f"it offers {shown(memory.offers)}: give a {names}", "layout"
                )
            return
        found = f"a Placement whose shape is {shown(shape)}"
        if not isinstance(shape, Rectangle | Region | StateRows) or not all(type(n) is int for n in shape):
            raise Wrong(found, "give None, a Rectangle, a Region or StateRows, of whole numbers")
        if isinstance(shape, Rectangle):
            stop = shape.offset + shape.rows * shape.stride
            right = shape.rows > 0 and shape.begin <= shape.start < shape.stop <= shape.begin + shape.stride
        elif isinstance(shape, Region):
            stop, right = (shape.offset + shape.size) * shape.width, shape.size > 0 and shape.width > 0
        else:
            stop, right = shape.offset + shape.rows, shape.steps == len(placement.waves)
        if not right or shape.offset < 0 or stop > memory.capacity:
            allowed = "rows, widths and columns are at least 1, and a window is no wider than a row"
            raise Wrong(found, f"it lies in the {memory.capacity} slots of memory; {allowed}", "layout")
        for work, place in zip(proposal.work, placement.places, strict=True):
            if not _is_inside(shape, work, place):
                raise Wrong(found, f"{shown(work)} lies in {shown(place)}, which is not what it computes", "layout")


def _is_inside(shape: Shape, work: Work, place: Place) -> bool:
    """Whether a shape computes this work where it lies."""
    if isinstance(shape, StateRows):
        return isinstance(place, State) and shape.offset <= place.slot < shape.offset + shape.rows
    slots = place.slots(work.start, work.stop)
    if isinstance(shape, Region):
        return work.num_tokens > 1 or 0 <= slots[0] // shape.width - shape.offset < shape.size
    try:
        row, column = shape.locate(slots[0])
    except LawBroken:
        return False
    last = column + len(slots) - 1
    return column >= shape.start and last < shape.stop and slots[-1] == shape.slot(row, last)


def _check_slots(works: tuple[Work, ...], places: tuple[Place, ...]) -> None:
    """Raise `Wrong` if two pieces of work write one slot, or one writes what another sequence reads."""
    if len(works) == 1:
        return
    writer: dict[int, Work] = {}
    for work, place in zip(works, places, strict=True):
        for slot in place.slots(work.start, work.stop):
            other = writer.setdefault(slot, work)
            if other is not work:
                raise Wrong(
                    f"a Placement in which {other} and {work} write slot {slot}",
                    "each token has a slot of its own",
                    "conservation",
                )
    for work, place in zip(works, places, strict=True):
        for slot in writer.keys() & set(place.slots(0, work.start)):
            if writer[slot].sequence != work.sequence:
                found = f"a Placement in which {writer[slot]} writes slot {slot}, which {work} reads"
                raise Wrong(found, "what is shared is not written: give the writer a copy", "conservation")


def _check_states(proposal: Proposal, placement: Placement) -> None:
    """Raise `Wrong` if two nodes of one wave write one slot."""
    for start, stop in proposal.waves or (Span(0, len(proposal.work)),):
        slots = Counter(place.slot for place in placement.places[start:stop] if isinstance(place, State))
        for slot, count in slots.items():
            if count > 1:
                raise Wrong(
                    f"a Placement in which {count} nodes write slot {slot}",
                    "each node has a slot of its own",
                    "conservation",
                )


def _check_move(where: str, move: Move, memory: Any, num_waves: int) -> None:
    found = f"{where}{shown(move)}"
    sizes = {"device": memory.capacity, "host": memory.host_capacity}
    if move.kind not in KINDS or move.moment not in MOMENTS or not {move.source_tier, move.target_tier} <= sizes.keys():
        raise Wrong(
            found, f"a kind is one of {', '.join(KINDS)}, a moment of {', '.join(MOMENTS)}, a tier device or host"
        )
    if not all(is_whole(n) for n in (move.source, move.target, move.num_tokens, move.wave)):
        raise Wrong(found, "slots, tokens and waves are whole numbers")
    if (
        move.source + move.num_tokens > sizes[move.source_tier]
        or move.target + move.num_tokens > sizes[move.target_tier]
    ):
        raise Wrong(found, f"the device has {sizes['device']} slots, and the host {sizes['host']}", "layout")
    try:
        move.check(num_waves)
    except LawBroken as broken:
        raise Wrong(found, str(broken).partition(": ")[2], "layout") from None


def _usage(memory: Any, usage: Any) -> KVUsage:
    if not isinstance(usage, KVUsage):
        raise Wrong(shown(usage), "give KVUsage(used, reserved, capacity)")
    sums = usage.reserved, usage.host
    right = all(map(is_whole, usage)) and usage.used <= usage.reserved and usage.capacity == memory.capacity
    if not right or sums[0] + usage.kept > usage.capacity or sums[1] + usage.kept_on_host > memory.host_capacity:
        allowed = f"used <= reserved, and with what is kept <= capacity, which is {memory.capacity}"
        raise Wrong(
            shown(usage), f"{allowed}; on the host {memory.host_capacity}, all of them whole numbers", "conservation"
        )
    return usage


class CheckedRoom:
    """A room that is not minifuse's own."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def admit(self, sequence: Sequence, **growing: bool) -> Reason | None:
        return self._reason("admit", sequence, **growing)

    def extend(self, sequence: Sequence) -> Reason | None:
        return self._reason("extend", sequence)

    def evict(self, sequence: Sequence) -> None:
        with blamed(type(self._room), "evict", (LawBroken,)):
            evict: Any = self._room.evict
            check_nothing(evict(sequence))

    def _reason(self, name: str, sequence: Sequence, **growing: bool) -> Reason | None:
        with blamed(type(self._room), name):
            reason: Reason | None = getattr(self._room, name)(sequence, **growing)
            if reason is not None:
                check_reason("", reason, (sequence.id,))
            return reason
