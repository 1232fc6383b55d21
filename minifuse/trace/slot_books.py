"""The owners of each slot at each moment of a run, slot by slot, from a trace's lines alone.

    for frame in books(events):
        frame.held["device", 12]  # Held(owners=frozenset({'r1'}), state='written')

The same rules as `owners.js` of the replay page follows, in the plainest way: a dictionary of slots, copied for every
column. A plan begins before another ends if it started before that; its evictions, moves and places take effect when
it begins, and the requests that it finishes give up their slots when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from minifuse.trace.log import Event, whole_tables


class Held(NamedTuple):
    """The owners of a slot, and its state: reserved, written, kept, or a copy of what is on the host."""

    owners: frozenset[str]
    state: str


Slot = tuple[str, int]  # on the "device" or on the "host"
Slots = dict[Slot, Held]


class Frame(NamedTuple):
    """Every slot that is held while a step, or a wait, runs; what finishes with it still has its slots.

    `event` has its block tables whole. `waves` are the slots while each wave of it is attended, if there are several;
    what one wave wrote may have left the device before the next.
    """

    event: Event
    held: Slots
    waves: tuple[Slots, ...] = ()


def slots_of(place: list[Any]) -> list[int]:
    """The slots of a place, in the order of its tokens."""
    if len(place) == 1:
        return [slot for first, count in place[0] for slot in range(first, first + count)]
    if isinstance(place[0], list):
        return [block * place[1] + i for block in place[0] for i in range(place[1])]
    return list(range(place[0], place[0] + place[1]))


def _block_size(events: list[Event]) -> int:
    """The slots of a block; 1 where places are not in blocks."""
    steps = [event for event in events if event["event"] == "step"]
    placed = [one for step in steps for one in zip(step["work"], step["places"], strict=True)]
    of_texts = [place for work, place in placed if len(work) == 3]
    return next((place[1] for place in of_texts if len(place) == 2 and isinstance(place[0], list)), 1)


def fresh_slots(step: Event, wave: int | None = None) -> set[int]:
    """The slots that a step writes on the device, or one of its waves; its block tables are to be whole.

    >>> fresh_slots({"work": [["a", 2, 4]], "places": [[8, 16]], "waves": [[0, 1]]})
    {10, 11}
    """
    first, stop = (0, len(step["work"])) if wave is None else step["waves"][wave]
    found: set[int] = set()
    for (_, start, end, *cell), place in list(zip(step["work"], step["places"], strict=True))[first:stop]:
        found |= {place[1]} if cell else set(slots_of(place)[start:end])
    return found


class _Books:
    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.conversations = {e["id"]: e["conversation"] for e in events if e["event"] == "request"}
        self.layered = events[0].get("options", {}).get("memory.turns") == "layers"
        self.keeps = any(any(event.get("kept", ())) for event in events)
        self.block = _block_size(events)
        self.held: Slots = {}
        self.twins: dict[Slot, Slot] = {}
        self.places: dict[str, list[int]] = {}
        self.lost: dict[int, list[tuple[int, str]]] = {}  # step -> states of which it is the last reader
        self.gone: set[str] = set()

    def unlink(self, slot: Slot) -> Slot | None:
        twin = self.twins.pop(slot, None)
        if twin is not None:
            del self.twins[twin]
        return twin

    def remove(self, slot: Slot, name: str) -> None:
        held = self.held.get(slot)
        if held is None or name not in held.owners:
            return
        if rest := held.owners - {name}:
            self.held[slot] = held._replace(owners=rest)
        else:
            self.unlink(slot)
            del self.held[slot]

    def owned(self, name: str, tier: str) -> list[Slot]:
        return [slot for slot, held in self.held.items() if slot[0] == tier and name in held.owners]

    def move(
        self, kind: str, first: int, target: int, count: int, tier: str, target_tier: str, step: Event
    ) -> set[str]:
        """Returns the requests that alone use a slot of what was moved."""
        alone: set[str] = set()
        apart = tier != target_tier and kind != "swap_in"
        for i in range(count):
            source, to = (tier, first + i), (target_tier, target + i)
            held = self.held[source]
            if held.state == "written" and len(held.owners) == 1:
                alone |= held.owners
            self.unlink(to)
            if not apart and kind != "copy":
                self.unlink(source)
                del self.held[source]
            owners = frozenset[str]() if kind == "copy" else held.owners
            if target_tier == "host":  # of those that share it, the evicted ones leave
                owners = owners & {*step["evicted"]} or owners
            self.held[to] = Held(owners, "kept" if held.state == "kept" else "written")
            if apart:
                self.unlink(source)
                self.twins[source], self.twins[to] = to, source
        if target_tier == "host":  # a block has the tokens of one chunk: what lay behind them has been dropped
            for number in range(target + count, -(-(target + count) // self.block) * self.block):
                self.unlink(("host", number))
                self.held.pop(("host", number), None)
        return alone

    def moves(self, step: Event, moment: str, wave: int) -> None:
        leaving: set[str] = set()
        for kind, first, target, count, tier, target_tier, when, which in step["moves"]:
            if (when, which) == (moment, wave):
                alone = self.move(kind, first, target, count, tier, target_tier, step)
                leaving |= alone if target_tier == "host" else set()
        for name in leaving:
            for slot in self.owned(name, "device"):
                if self.held[slot] == Held(frozenset({name}), "written"):
                    self.held[slot] = self.held[slot]._replace(state="copy")
                elif self.held[slot].state == "reserved":
                    self.remove(slot, name)

    def place(self, name: str, slots: list[int], first: int) -> None:
        for left in set(self.places.get(name, ())) - set(slots):
            self.remove(("device", left), name)
        self.places[name] = slots
        mine = self.conversations.get(name)
        for token, number in enumerate(slots):
            slot = ("device", number)
            held = self.held.get(slot, Held(frozenset(), "free"))
            if name in held.owners and held.state in ("reserved", "written"):
                continue
            same = any(one == name or (mine is not None and self.conversations[one] == mine) for one in held.owners)
            has = held.state in ("written", "kept") and (token < first or same)
            others = {one for one in held.owners if one in self.places} if has and held.state == "written" else set()
            if not has:
                self.unlink(slot)
            elif held.state == "kept" and (twin := self.unlink(slot)) is not None:
                del self.held[twin]
            self.held[slot] = Held(frozenset(others | {name}), "written" if has else "reserved")

    def begin(self, step: Event) -> tuple[Slots, ...]:
        """A plan begins. Returns the slots while each wave is attended, if there are several."""
        waves: list[Slots] = []
        for moment in ("first", "behind", "before"):
            self.moves(step, moment, 0)
        for name in step["evicted"]:
            self.places.pop(name, None)
            self.leave_device(name, self.keeps)
        for wave, (start, stop) in enumerate(step["waves"]):
            if wave:
                self.moves(step, "before", wave)
            works = list(zip(step["work"], step["places"], strict=True))[start:stop]
            firsts: dict[str, int] = {}
            for (name, token, *_), _ in works:
                firsts.setdefault(name, token)
            for (name, token, end, *cell), place in works:
                if cell:
                    slots, own = [place[1]], range(1)
                    self.held.pop(("device", place[1]), None)
                    self.held[("device", place[1])] = Held(frozenset({name}), "written")
                else:
                    slots, own = slots_of(place), range(token, end)
                    self.place(name, slots, firsts[name])
                for i in own:
                    own_slot = ("device", slots[i])
                    self.unlink(own_slot)
                    owners = self.held[own_slot].owners
                    self.held[own_slot] = Held(owners if name in owners else frozenset({name}), "written")
            if len(step["waves"]) > 1 or (step["waves"] and self.layered):
                waves.append(dict(self.held))
            self.moves(step, "after", wave)
        return tuple(waves)

    def leave_device(self, name: str, keep: bool) -> None:
        for slot in self.owned(name, "device"):
            held = self.held[slot]
            if keep and held.state in ("written", "kept", "copy") and len(held.owners) == 1:
                self.held[slot] = held._replace(state="kept")
            else:
                self.remove(slot, name)

    def leave(self, name: str) -> None:
        keep = self.keeps and self.conversations.get(name) is not None
        self.places.pop(name, None)
        self.gone.add(name)
        self.leave_device(name, keep)
        for slot in self.owned(name, "host"):
            if keep:
                self.held[slot] = self.held[slot]._replace(state="kept")
            else:
                self.remove(slot, name)

    def end(self, step: Event) -> None:
        for number, name in self.lost.get(step["step"], ()):
            held = self.held.get(("device", number))
            if held is not None and name in held.owners:
                self.unlink(("device", number))
                del self.held[("device", number)]
        for name in {*step["finished"], *(work[0] for work in step["work"] if work[0] in self.gone)}:
            self.leave(name)
        if self.layered:  # the device has held one layer after the other, and holds nothing that is read again
            for slot in [slot for slot in self.held if slot[0] == "device"]:
                self.unlink(slot)
                del self.held[slot]


def _last_readers(order: Iterable[Event]) -> dict[int, list[tuple[int, str]]]:
    """Of runs of cells: by step, the slots that it reads for the last time before they are written again, or ever."""
    holder: dict[int, str] = {}
    reader: dict[int, int] = {}
    found: dict[int, list[tuple[int, str]]] = {}

    def close(slot: int, by: int | None) -> None:
        if slot in reader and reader[slot] != by:
            found.setdefault(reader[slot], []).append((slot, holder[slot]))
        reader.pop(slot, None)

    for step in order:
        for start, stop in step["waves"]:
            pieces = list(zip(step["work"], step["places"], strict=True))[start:stop]
            if not pieces or len(pieces[0][0]) < 4:
                continue
            for _, (reads, _) in pieces:
                for slot in reads:
                    if slot in holder:
                        reader[slot] = step["step"]
            for (name, *_), (_, slot) in pieces:
                close(slot, step["step"])
                holder[slot] = name
    for slot in [*reader]:
        close(slot, None)
    return found


def books(events: Iterable[Event]) -> Iterator[Frame]:
    """The slots that are held while each column runs: the steps and the waits of a trace, in its order.

    Args:
        events: of one run, as its trace file has them.
    """
    events = list(whole_tables(events))
    columns = [event for event in events if event["event"] in ("step", "wait")]
    pending = _as_they_begin([event for event in columns if event["event"] == "step"])
    made = _Books(events)
    made.lost = _last_readers(pending)
    waves: dict[int, tuple[Slots, ...]] = {}  # of the steps that have begun
    for column in columns:
        runs = column["event"] == "step"
        while runs and pending and (column["step"] not in waves or _starts_before(pending[0], column)):
            step = pending.pop(0)
            waves[step["step"]] = made.begin(step)
        yield Frame(column, dict(made.held), waves.pop(column["step"]) if runs else ())
        if runs:
            made.end(column)


def _as_they_begin(steps: list[Event]) -> list[Event]:
    """Plans in the order in which they started: one that waits in the queue of its worker has no slots yet, though one
    with a later number may run on another worker.

    Where KV is moved, in the order of their numbers: a copy beside the iterations may start after the iteration that
    overwrites what it copies, and which waits for it.
    """
    moves = any(step["moves"] for step in steps)
    return sorted(steps, key=lambda step: (0.0 if moves else step["wall"]["start_s"], step["step"]))


def _starts_before(step: Event, column: Event) -> bool:
    """Whether a plan starts before another ends."""
    return bool(step["wall"]["start_s"] < column["wall"]["end_s"])
