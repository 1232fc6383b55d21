"""Derives who owns each slot at every moment, from a trace's places and moves.

    for frame in books(events):
        frame.held["device", 12].owners  # frozenset({'r1'})

A plan's evictions, moves and places take effect when it begins; the requests that it finishes give up their slots when
it ends. Plans begin and end in the order of their times, so one may begin before another has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from minifuse.trace.log import Event, whole_tables
from minifuse.trace.slots import block_size, slots_of


class Held(NamedTuple):
    """A slot's owners and state: reserved, written, kept, or copy (also on the host)."""

    owners: frozenset[str]
    state: str
    token: int | None = None  # its number in the owners' texts, while the owners have a place
    twin: int | None = None  # the slot of the other tier with the same KV


Slot = tuple[str, int]  # on the "device" or on the "host"
Slots = dict[Slot, Held]
OTHER_TIER = {"device": "host", "host": "device"}
FREE = Held(frozenset(), "free")
MOST_WINDOWS = 8  # of a shuffle: the chosen one, and others with the fewest copies


class Window(NamedTuple):
    """Adjacent buffers that running requests may be gathered in, and the copies it takes."""

    first: int
    last: int
    copies: int


class Effects(NamedTuple):
    """What happens to slots when a plan begins."""

    waves: tuple[Slots, ...] = ()  # during each wave, if there are several or layers take turns
    sources: tuple[frozenset[str], ...] = ()  # the owners of what each move reads
    moved: Mapping[tuple[str, str], int] = {}  # tokens moved for a request, by kind of move
    windows: tuple[Window, ...] = ()  # of a shuffle that admits nothing


class Frame(NamedTuple):
    """Every slot held while a step or wait runs, finishing requests' slots included.

    `held` changes with the next frame: copy it to keep it. `changed` has the slots that differ from the last frame.
    """

    event: Event  # its block tables are whole
    held: Slots
    changed: set[Slot]
    effects: Effects


def shuffle_windows(live: set[int], fixed: set[int], count: int) -> tuple[Window, ...]:
    """Return the windows of `count` buffers that can hold the `live` ones; `fixed` ones stay.

    >>> [tuple(window) for window in shuffle_windows({0, 4}, {2}, 5)]
    [(0, 1, 1), (1, 3, 2), (3, 4, 1)]
    """
    movable = [buffer for buffer in range(count) if buffer not in fixed]
    every = [movable[start : start + len(live)] for start in range(len(movable) - len(live) + 1)]
    return tuple(Window(inside[0], inside[-1], len({*inside} - live)) for inside in every)


def is_layered(header: Event) -> bool:
    """Return whether layers take turns: device slots hold one layer's KV at a time."""
    return bool(header.get("options", {}).get("memory.turns") == "layers")


class _Books:
    def __init__(self, events: list[Event], block: int) -> None:
        self.conversations = {e["id"]: e.get("conversation") for e in events if e["event"] == "request"}
        self.layered = is_layered(events[0])
        self.keeps = any(any(event.get("kept", ())) for event in events)
        self.offloads = any(move[0] == "offload" for event in events for move in event.get("moves", ()))
        self.capacity = events[0].get("kv_capacity_tokens", 0)
        self.block = block
        self.held: Slots = {}
        self.changed: set[Slot] = set()
        self.owned: dict[str, set[Slot]] = {}
        self.places: dict[str, tuple[list[Any], list[int]]] = {}  # request -> its place in the trace, and the slots
        self.lost: dict[int, list[tuple[int, str]]] = {}  # step -> states (slot, owner) that it reads last
        self.gone: set[str] = set()  # requests that have ended

    def put(self, slot: Slot, held: Held) -> None:
        """Change a slot."""
        before = self.held.get(slot, FREE)
        self.changed.add(slot)
        if held is FREE:
            self.held.pop(slot, None)
        else:
            self.held[slot] = held
        if held.owners is not before.owners:
            for name in before.owners - held.owners:
                self.owned[name].discard(slot)
            for name in held.owners - before.owners:
                self.owned.setdefault(name, set()).add(slot)

    def unlink(self, slot: Slot) -> Slot | None:
        """Separate a slot and its twin: their KV will differ. Returns the twin."""
        held = self.held.get(slot, FREE)
        if held.twin is None:
            return None
        twin = (OTHER_TIER[slot[0]], held.twin)
        for one in (slot, twin):
            self.put(one, Held(*self.held[one][:3]))
        return twin

    def clear(self, slot: Slot) -> None:
        self.unlink(slot)
        if slot in self.held:
            self.put(slot, FREE)

    def remove(self, slot: Slot, name: str) -> None:
        """Take a slot from a request."""
        held = self.held[slot]
        if rest := held.owners - {name}:
            self.put(slot, held._replace(owners=rest))
        else:
            self.clear(slot)

    def owned_on(self, tier: str, name: str) -> list[Slot]:
        return [slot for slot in self.owned.get(name, ()) if slot[0] == tier]

    def move(self, move: list[Any], evicted: list[str]) -> set[str]:
        """Move KV. Returns the requests that are the only owner of a moved slot."""
        kind, first, target, count, tier, target_tier, *_ = move
        alone: set[str] = set()
        twins = tier != target_tier and kind != "swap_in"
        for i in range(count):
            source, to = (tier, first + i), (target_tier, target + i)
            owners, state, token, twin = held = self.held.get(source, FREE)
            if state == "written" and len(owners) == 1:
                alone |= owners
            if twin != to[1] or not twins:
                self.unlink(to)
                self.unlink(source)
            state = "kept" if state == "kept" else "written"
            if twins and held is not FREE:
                self.put(source, Held(owners, held.state, token, to[1]))
            elif kind == "copy":
                owners = FREE.owners  # the copy gets its owner with a place
            elif not twins:
                self.clear(source)
            if target_tier == "host":  # of requests that share a slot, only evicted ones leave
                owners = owners & {*evicted} or owners
            self.put(to, Held(owners, state, token, first + i if twins and held is not FREE else None))
        if target_tier == "host":  # a host block has one chunk: slots behind it are empty
            for number in range(target + count, -(-(target + count) // self.block) * self.block):
                self.clear(("host", number))
        return alone

    def give_back(self, name: str) -> None:
        """Mark the device slots of one request as copies: its KV is on the host."""
        for slot in self.owned_on("device", name):
            held = self.held[slot]
            if held.state == "reserved":
                self.remove(slot, name)
            elif held.state == "written" and len(held.owners) == 1:
                self.put(slot, held._replace(state="copy"))

    def place(self, name: str, place: list[Any], first: int, again: bool) -> None:
        """Give a request a place; `first` is the first token that is computed in it."""
        told, old = self.places.get(name, ([], []))
        if told == place and not again:
            return
        slots = slots_of(place)
        self.places[name] = place, slots
        same = _alike(old, slots)
        for left in {*old[same:]} - {*slots}:
            if name in self.held.get(("device", left), FREE).owners:
                self.remove(("device", left), name)
        mine = self.conversations.get(name)
        for token in range(0 if again else same, len(slots)):
            slot = ("device", slots[token])
            held = self.held.get(slot, FREE)
            if name in held.owners and held.state in ("reserved", "written"):
                if held.token != token:
                    self.put(slot, held._replace(token=token))
                continue
            alike = any(one == name or (mine is not None and self.conversations[one] == mine) for one in held.owners)
            has = held.state in ("written", "kept") and (token < first or alike)
            others = {one for one in held.owners if one in self.places} if has and held.state == "written" else set()
            if not has:
                self.unlink(slot)
            elif held.state == "kept" and (twin := self.unlink(slot)) is not None:
                self.put(twin, FREE)  # the request may write to it, so the host's copy is given up
            twin_number = self.held.get(slot, FREE).twin
            self.put(slot, Held(frozenset(others | {name}), "written" if has else "reserved", token, twin_number))

    def write(self, name: str, slot: Slot, token: int | None) -> None:
        """Write a request's token, or state, into a slot."""
        self.unlink(slot)
        owners = self.held.get(slot, FREE).owners
        self.put(slot, Held(owners if name in owners else frozenset({name}), "written", token))

    def begin(self, step: Event) -> Effects:
        """Let a plan begin."""
        windows = self.windows(step)
        waves: list[Slots] = []
        sources: dict[int, frozenset[str]] = {}
        moved: Counter[tuple[str, str]] = Counter()
        arriving: list[list[Any]] = []  # moves to the device with a target that is in no place yet
        working = {work[0] for work in step["work"]}

        def do_moves(moment: str, wave: int) -> None:
            leaving: set[str] = set()
            for k, move in enumerate(step["moves"]):
                if (move[6], move[7]) != (moment, wave):
                    continue
                kind, first, _, count, tier, target_tier, *_ = move
                sources[k] = frozenset[str]().union(
                    *{self.held.get((tier, first + i), FREE).owners for i in range(count)}
                )
                if target_tier == "device":
                    arriving.append(move)
                else:
                    leaves = self.held.get((tier, first), FREE).owners - self.gone
                    moved.update({(name, kind): count for name in leaves if name not in working or kind == "offload"})
                alone = self.move(move, step["evicted"])
                leaving |= alone if target_tier == "host" else set()
            for name in leaving:
                self.give_back(name)

        for moment in ("first", "behind", "before"):
            do_moves(moment, 0)
        for name in step["evicted"]:
            self.places.pop(name, None)
            self.leave_device(name, self.keeps)
        for wave, (start, stop) in enumerate(step["waves"]):
            if wave:
                do_moves("before", wave)
            self.compute(step, start, stop)
            if len(step["waves"]) > 1 or self.layered:
                waves.append(dict(self.held))
            for move in [*arriving]:
                if names := self.held.get(("device", move[2]), FREE).owners & working:
                    moved.update({(name, move[0]): move[3] for name in names})
                    arriving.remove(move)
            do_moves("after", wave)
        in_order = tuple(sources.get(k, FREE.owners) for k in range(len(step["moves"])))
        return Effects(tuple(waves), in_order, moved, windows)

    def compute(self, step: Event, start: int, stop: int) -> None:
        """Give the requests of a wave their places, and write what they compute."""
        works = [*zip(step["work"], step["places"], strict=True)][start:stop]
        firsts: dict[str, int] = {}
        for (name, token, *_), _ in works:
            firsts.setdefault(name, token)
        for (name, token, end, *cell), place in works:
            if cell:
                if ("device", place[1]) in self.held:
                    self.put(("device", place[1]), FREE)
                self.write(name, ("device", place[1]), None)
                continue
            self.place(name, place, firsts[name], self.offloads or (self.keeps and name in step["admitted"]))
            for i, slot in enumerate(self.places[name][1][token:end], start=token):
                self.write(name, ("device", slot), i)

    def windows(self, step: Event) -> tuple[Window, ...]:
        """Return the windows of a step's shuffle.

        There are none if the step admits: then the trace does not say where requests were before.
        """
        shape = step.get("shape") or {}
        if shape.get("kind") != "Region" or step["admitted"] or not any(one[0] == "shuffle" for one in step["moves"]):
            return ()
        working = {work[0] for work in step["work"]}
        live: set[int] = set()
        fixed: set[int] = set()
        for (tier, number), held in self.held.items():
            if tier == "device":
                (live if held.owners & working else fixed).add(number // shape["width"])
        beyond = max({*live, *fixed}, default=0) + len(live) + MOST_WINDOWS  # beyond, all windows are alike
        every = shuffle_windows(live, fixed, min(self.capacity // shape["width"], beyond))
        chosen = (shape["offset"], shape["offset"] + shape["size"] - 1)
        shown = sorted(every, key=lambda one: (one[:2] != chosen, one.copies))[:MOST_WINDOWS]
        return tuple(sorted(shown))

    def leave_device(self, name: str, keep: bool) -> None:
        for slot in self.owned_on("device", name):
            held = self.held[slot]
            if keep and held.state in ("written", "kept", "copy") and len(held.owners) == 1:
                self.put(slot, held._replace(state="kept", token=None))
            else:
                self.remove(slot, name)

    def leave(self, name: str) -> None:
        """Let a request end."""
        keep = self.keeps and self.conversations.get(name) is not None
        self.places.pop(name, None)
        self.gone.add(name)
        self.leave_device(name, keep)
        for slot in self.owned_on("host", name):
            if keep:
                self.put(slot, self.held[slot]._replace(state="kept"))
            else:
                self.remove(slot, name)

    def end(self, step: Event) -> None:
        """Let a plan end."""
        for number, name in self.lost.get(step["step"], ()):
            if name in self.held.get(("device", number), FREE).owners:
                self.clear(("device", number))
        for name in {*step["finished"], *(work[0] for work in step["work"] if work[0] in self.gone)}:
            self.leave(name)
        if self.layered:  # the device held one layer after the other: nothing on it is read again
            for slot in [slot for slot in self.held if slot[0] == "device"]:
                self.clear(slot)


def _alike(one: list[int], other: list[int]) -> int:
    """Count the slots that both lists begin with."""
    if other[: len(one)] == one:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _last_readers(order: Iterable[Event]) -> dict[int, list[tuple[int, str]]]:
    """Return, by step, the states of cells (slot, owner) that it reads last."""
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
    """Yield the slots held during each step and wait, in trace order.

    Args:
        events: of one run, as in its trace file.
    """
    told = list(events)
    events = list(whole_tables(told))
    columns = [event for event in events if event["event"] in ("step", "wait")]
    pending = _as_they_begin([event for event in columns if event["event"] == "step"])
    aborted = [event for event in events if event["event"] == "aborted"]
    aborted.sort(key=lambda event: float(event["wall"]["end_s"]))
    made = _Books(events, block_size(told) or 1)
    made.lost = _last_readers(pending)
    begun: dict[int, Effects] = {}
    for column in columns:
        runs = column["event"] == "step"
        while aborted and aborted[0]["wall"]["end_s"] <= column["wall"]["start_s"]:
            made.leave(aborted.pop(0)["id"])
        while runs and pending and (column["step"] not in begun or _starts_before(pending[0], column)):
            step = pending.pop(0)
            begun[step["step"]] = made.begin(step)
        yield Frame(column, made.held, made.changed, begun.pop(column["step"]) if runs else Effects())
        made.changed = set()
        if runs:
            made.end(column)


def _as_they_begin(steps: list[Event]) -> list[Event]:
    """Sort plans by their start: a queued plan has no slots yet.

    If KV is moved, plans are sorted by number: a copy beside the iterations may start after the iteration that
    overwrites its source, though that iteration waits for the copy.
    """
    moves = any(step["moves"] for step in steps)
    return sorted(steps, key=lambda step: (0.0 if moves else step["wall"]["start_s"], step["step"]))


def _starts_before(step: Event, column: Event) -> bool:
    """Return whether a plan starts before another ends."""
    return bool(step["wall"]["start_s"] < column["wall"]["end_s"])
