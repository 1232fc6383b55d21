"""Derives who owns each slot at every moment, from a trace's places and moves.

    for frame in books(events):
        frame.held["device", 12].owners  # frozenset({'r1'})

A plan's evictions, moves and places take effect when it begins; the requests that it finishes give up their slots when
it ends. Plans begin and end in the order of their times, so one may begin before another has ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Any, NamedTuple

from minifuse.trace.log import Event, whole_tables
from minifuse.trace.slots import as_drawn, block_size, first_shared, slots_of, tier_of
from minifuse.trace.step import num_alike


class Held(NamedTuple):
    """Holds a slot's owners and its state: "reserved", "written", "kept", "copy" or "free".

    A "copy" on the device is also on the host. `token` and `twin` are stored minus the slot's number, so that adjacent
    slots with successive tokens have equal values.
    """

    owners: frozenset[str]
    state: str
    token: int | None = None  # position in the owners' texts minus the slot's number; None: the owners have no place
    twin: int | None = None  # number of the other tier's slot with the same KV minus the slot's number


Slot = tuple[str, int]  # on the "device" or on the "host"
Slots = dict[Slot, Held]
OTHER_TIER = {"device": "host", "host": "device"}
FREE = Held(frozenset(), "free")
MOST_WINDOWS = 8  # windows to show of a shuffle: the chosen one, and those with the fewest copies


class Window(NamedTuple):
    """A range of buffers in which running requests can be gathered, and the copies needed."""

    first: int
    last: int
    copies: int


class Effects(NamedTuple):
    """Records what happens to slots when a plan begins."""

    waves: tuple[Slots, ...] = ()  # by wave, device slots that differ from `held`; () if one wave has all layers
    sources: tuple[frozenset[str], ...] = ()  # the owners of what each move reads
    moved: Mapping[tuple[str, str], int] = {}  # tokens moved for a request, by kind of move
    windows: tuple[Window, ...] = ()  # of a shuffle that admits nothing


class Frame(NamedTuple):
    """Lists every slot held during a step or wait, including slots of requests that finish.

    `held` changes with the next frame: copy it to keep it. `changed` has the slots that differ from the last frame.
    """

    event: Event  # with whole block tables, as drawn
    held: Slots
    changed: set[Slot]
    effects: Effects

    def during(self, wave: int | None) -> Slots:
        """Return every slot held during a wave, or `held` for None."""
        if wave is None:
            return self.held
        every = self.held | self.effects.waves[wave]
        return {slot: held for slot, held in every.items() if held is not FREE}


def shuffle_windows(live: set[int], fixed: set[int], count: int) -> tuple[Window, ...]:
    """Return the windows in which the live buffers can be gathered.

    Args:
        fixed: buffers that stay where they are.
        count: the number of all buffers.

    >>> [tuple(window) for window in shuffle_windows({0, 4}, {2}, 5)]
    [(0, 1, 1), (1, 3, 2), (3, 4, 1)]
    """
    movable = [buffer for buffer in range(count) if buffer not in fixed]
    every = [movable[start : start + len(live)] for start in range(len(movable) - len(live) + 1)]
    return tuple(Window(inside[0], inside[-1], len({*inside} - live)) for inside in every)


class _Books:
    def __init__(self, events: list[Event], block: int, first_shared: int) -> None:
        self.conversations = {e["id"]: e.get("conversation") for e in events if e["event"] == "request"}
        self.keeps = any(any(event.get("kept", ())) for event in events)
        self.capacity = events[0].get("kv_capacity_tokens", 0)
        self.block = block
        self.first_shared = first_shared  # the first slot that layers share; 0: there is none
        self.held: Slots = {}
        self.changed: set[Slot] = set()
        self.waves: dict[int, list[Slots]] = {}  # running step -> for each wave, what slots held before later changes
        self.owned: defaultdict[tuple[str, str], set[Slot]] = defaultdict(set)  # tier and request -> slots
        self.places: dict[str, tuple[list[Any], list[Slot]]] = {}  # request -> its place in the trace, and the slots
        self.stale: set[str] = set()  # requests whose slots may have changed since they were placed
        self.lost: dict[int, list[tuple[int, str]]] = {}  # step -> states (slot, owner) that no later step reads
        self.gone: set[str] = set()  # requests that have ended

    def put(self, slots: Iterable[Slot], held: Held) -> None:
        """Set what slots of one tier hold, and unlink twins whose KV will differ."""
        for found, alike in groupby(slots, self.held.get):
            before, run = found or FREE, [*alike]
            tier = run[0][0]
            self.changed.update(run)
            if tier == "device":
                for wave in chain.from_iterable(self.waves.values()):
                    for slot in run:
                        wave.setdefault(slot, before)
            self.held.update(dict.fromkeys(run, held))
            if held is FREE:
                for slot in run:
                    del self.held[slot]
            if before.twin is not None and before.twin != held.twin:
                twins = [(OTHER_TIER[tier], number + before.twin) for _, number in run]
                for twin, linked in groupby(twins, self.held.get):
                    if twin and twin.twin == -before.twin:
                        self.put([*linked], twin._replace(twin=None))
            for name in before.owners - held.owners:
                self.owned[tier, name].difference_update(run)
                self.stale.add(name)
            for name in held.owners - before.owners:
                self.owned[tier, name].update(run)

    def remove(self, slots: list[Slot], name: str) -> None:
        """Remove a request from the owners of slots with equal `Held`."""
        held = self.held[slots[0]]
        rest = held.owners - {name}
        self.put(slots, held._replace(owners=rest) if rest else FREE)

    def owned_on(self, tier: str, name: str) -> list[tuple[Held, list[Slot]]]:
        """Return a request's slots in a tier, grouped into runs with equal `Held`."""
        return [(held, [*run]) for held, run in groupby(sorted(self.owned[tier, name]), self.held.__getitem__)]

    def move(self, move: list[Any], evicted: list[str]) -> tuple[frozenset[str], set[str]]:
        """Apply a move; return the sources' owners, and the sole owners of written sources."""
        kind, first, target, count, tier, target_tier, *_ = move
        every: set[str] = set()
        alone: set[str] = set()
        twins = tier != target_tier and kind != "swap_in"
        way = target - first
        for found, run in groupby([(tier, first + i) for i in range(count)], self.held.get):
            sources = [*run]
            owners, state, token, _ = held = found or FREE
            every |= owners
            if state == "written" and len(owners) == 1:
                alone |= owners
            state = "kept" if state == "kept" else "written"
            if twins and found:
                self.put(sources, held._replace(twin=way))
            elif kind == "copy":
                owners = FREE.owners  # the copy gets its owner with a place
            elif found and not twins:
                self.put(sources, FREE)
            if target_tier == "host":  # of requests that share a slot, only evicted ones leave
                owners = owners.intersection(evicted) or owners
            token = None if token is None else token - way
            moved = Held(owners, state, token, -way if twins and found else None)
            self.put([(target_tier, number + way) for _, number in sources], moved)
        if target_tier == "host":  # a host block has one chunk: slots behind it are empty
            end = target + count
            behind = [("host", number) for number in range(end, -(-end // self.block) * self.block)]
            self.put([slot for slot in behind if slot in self.held], FREE)
        self.stale |= every
        return frozenset(every), alone

    def give_back(self, name: str) -> None:
        """Mark a request's written device slots as copies, and free its reserved ones."""
        self.stale.add(name)
        for held, run in self.owned_on("device", name):
            if held.state == "reserved":
                self.remove(run, name)
            elif held.state == "written" and len(held.owners) == 1:
                self.put(run, held._replace(state="copy"))

    def place(self, name: str, place: list[Any], first: int, stop: int) -> None:
        """Give a request a place.

        Args:
            first: the first token that is computed in this place.
            stop: the end of what is computed; on the host, slots behind it are not set aside.
        """
        tier = tier_of(place)
        place = place if tier == "device" else [*place, stop]
        told, old = self.places.get(name, ([], []))
        if told == place and name not in self.stale:
            return
        slots = [(tier, number) for number in slots_of(place, 0, None if tier == "device" else stop)]
        self.places[name] = place, slots
        same = num_alike(old, slots)
        for left in {*old[same:]} - {*slots}:
            if left in self.owned[left[0], name]:
                self.remove([left], name)
        mine = self.conversations.get(name)
        start = 0 if name in self.stale else same

        def look(token: int) -> tuple[Held, int, bool]:
            return self.held.get(slots[token], FREE), token - slots[token][1], token < first

        for (held, token, before), tokens in groupby(range(start, len(slots)), look):
            run = [slots[one] for one in tokens]
            if name in held.owners and held.state in ("reserved", "written"):
                if held.token != token:
                    self.put(run, held._replace(token=token))
                continue
            alike = any(one == name or (mine is not None and self.conversations[one] == mine) for one in held.owners)
            has = held.state in ("written", "kept") and (before or alike)
            owners, twin = {name}, None
            if has and held.state == "written":
                owners |= self.places.keys() & held.owners
                twin = held.twin
            elif has and held.twin is not None:  # the request may write here, so the host's copy is given up
                self.put([(OTHER_TIER[tier], number + held.twin) for _, number in run], FREE)
            self.put(run, Held(frozenset(owners), "written" if has else "reserved", token, twin))
        self.stale.discard(name)

    def begin(self, step: Event) -> Effects:
        """Let a plan begin."""
        windows = self.windows(step)
        waves = self.waves[step["step"]] = []
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
                if target_tier == "device":
                    arriving.append(move)
                else:
                    leaves = self.held.get((tier, first), FREE).owners - self.gone
                    moved.update({(name, kind): count for name in leaves if name not in working or kind == "offload"})
                sources[k], alone = self.move(move, step["evicted"])
                leaving |= alone if target_tier == "host" else set()
            for name in leaving:
                self.give_back(name)

        for moment in ("first", "behind", "before"):
            do_moves(moment, 0)
        for name in step["evicted"]:
            self.places.pop(name, None)
            self.give_up("device", name, self.keeps)
        for wave, (start, stop) in enumerate(step["waves"]):
            if wave:
                do_moves("before", wave)
            self.compute(step, start, stop)
            if len(step["waves"]) > 1:
                waves.append({})
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
                self.put([("device", place[1])], Held(frozenset({name}), "written"))
                continue
            self.place(name, place, firsts[name], end)
            for held, run in groupby(self.places[name][1][token:end], self.held.__getitem__):
                self.put([*run], Held(held.owners, "written", held.token))

    def windows(self, step: Event) -> tuple[Window, ...]:
        """Return the windows of a step's shuffle.

        There are none if the step admits requests: the trace does not say then where requests were before.
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

    def give_up(self, tier: str, name: str, keep: bool) -> None:
        """Take a tier's slots from a request; with `keep`, mark unshared KV as kept."""
        for held, run in self.owned_on(tier, name):
            if keep and held.state in ("written", "kept", "copy") and len(held.owners) == 1:
                self.put(run, held._replace(state="kept", token=None))
            else:
                self.remove(run, name)

    def leave(self, name: str) -> None:
        """Take the slots of a request that ends, or mark them as kept."""
        keep = self.keeps and self.conversations.get(name) is not None
        self.places.pop(name, None)
        self.gone.add(name)
        for tier in OTHER_TIER:
            self.give_up(tier, name, keep)

    def end(self, step: Event) -> None:
        """Apply the end of a plan: requests that it finishes give up their slots."""
        self.waves.pop(step["step"], None)
        for number, name in self.lost.get(step["step"], ()):
            if name in self.held.get(("device", number), FREE).owners:
                self.put([("device", number)], FREE)
        for name in {*step["finished"], *(work[0] for work in step["work"] if work[0] in self.gone)}:
            self.leave(name)
        if self.first_shared:  # shared slots held one layer after the other: nothing in them is read again
            self.put([slot for slot in self.held if slot[0] == "device" and slot[1] >= self.first_shared], FREE)


def _last_readers(order: Iterable[Event]) -> dict[int, list[tuple[int, str]]]:
    """Return, for each step, the states of cells (slot, owner) that no later step reads."""
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
        events: the events of one run, as in its trace file.
    """
    told = list(events)
    events = [as_drawn(event) if event["event"] == "step" else event for event in whole_tables(told)]
    columns = [event for event in events if event["event"] in ("step", "wait")]
    pending = _as_they_begin([event for event in columns if event["event"] == "step"])
    aborted = [event for event in events if event["event"] == "aborted"]
    aborted.sort(key=lambda event: float(event["wall"]["end_s"]))
    made = _Books(events, block_size(told) or 1, first_shared(told))
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

    If KV is moved, plans are sorted by number instead. A copy that runs beside the iterations may have a later start
    than the iteration that overwrites its source, although that iteration waits for the copy.
    """
    moves = any(step["moves"] for step in steps)
    return sorted(steps, key=lambda step: (0.0 if moves else step["wall"]["start_s"], step["step"]))


def _starts_before(step: Event, column: Event) -> bool:
    """Return whether the plan `step` starts before the plan `column` ends."""
    return bool(step["wall"]["start_s"] < column["wall"]["end_s"])
