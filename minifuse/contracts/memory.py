"""The contract of a memory (docs/stages.md): what its methods may return, and those of the room it gives."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from minifuse.contracts.contract import (
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
from minifuse.contracts.placement import PLACES, check_move, check_place, check_shape, check_slots, check_states
from minifuse.errors import LawBroken, RequestRefused
from minifuse.fault import Wrong, blamed, is_own, shown
from minifuse.place import Extent, Pages, Place, Runs, State
from minifuse.plan import Move, Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Sequence
from minifuse.stages import Room
from minifuse.work import Span

__all__ = ["MemoryContract"]

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
        self.slots: dict[str, dict[int, int]] = {}  # of each graph: node -> the slot that it writes
        self.num_plans: Counter[str] = Counter()  # in flight, of each sequence
        self.room_type: type[Any] | None = None  # of the last room, whose methods take what they are called with
        self.places: dict[str, Place] = {}  # where each sequence was last, while nothing has been moved

    def made(self, stage: Any, *arguments: Any) -> None:
        given = arguments[0]
        whole = f"it was given {given} slots: give a whole number from 1 to {given}"
        check_attribute(stage, "capacity", lambda v: is_whole(v, 1) and v <= given, whole)
        check_attribute(stage, "host_capacity", is_whole, "give a whole number, 0 if nothing is kept on the host")
        in_turn = "give a whole number, 1 if each layer has its own part of the device"
        check_attribute(stage, "layers_in_turn", lambda v: is_whole(v, 1), in_turn)

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
        self.slots.pop(sequence.id, None)

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
        if any(map(is_own, type(result).__mro__)):
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
            check_move("", move, memory, 0)
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
            check_move("a Placement with ", move, memory, max(1, len(result.waves)))
        if result.moves or proposal.evict:
            self.places.clear()
        for work, place in zip(proposal.work, result.places, strict=True):
            check_place(work, place, self.places.get(work.sequence), memory.layers_in_turn * memory.capacity)
        check_shape(memory, result, proposal)
        if all(isinstance(place, State) for place in result.places):
            graphs = {name: sequence.graph for name, sequence in self.known.items() if sequence.graph is not None}
            check_states(proposal, result, graphs, self.slots)
        else:
            for wave in result.waves or (Span(0, len(result.places)),):  # the next may overwrite what one has written
                check_slots(proposal.work[slice(*wave)], result.places[slice(*wave)])
        for work, place in zip(proposal.work, result.places, strict=True):
            if not isinstance(place, State):
                self.places[work.sequence] = place
        for name in {*(sequence.id for sequence in proposal.admit), *(work.sequence for work in proposal.work)}:
            self.num_plans[name] += 1
        return result


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
    if memory.layers_in_turn > 1 and usage.used + usage.kept:
        raise Wrong(shown(usage), "where layers take turns, the device holds nothing between two plans", "conservation")
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
