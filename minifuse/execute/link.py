"""Simulates the link between device and host, which works while the device computes (Pensieve)."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from minifuse.core.measured import Measured
from minifuse.core.plan import Move, Plan, Tier
from minifuse.execute.copies import Copy, copies, timetable

Way = Tier | None  # the tier that a copy goes to; None if it stays within the device


def way_of(move: Move) -> Way:
    """Return the tier that a move goes to; None if it stays within the device."""
    return move.target_tier if move.crosses else None


def traffic(moves: Iterable[Move], bytes_per_token: int, seconds: Mapping[Way, float]) -> Measured:
    """Count the bytes that moves carry each way; report them with the given `seconds`."""
    num_bytes = Counter[Way]()
    for move in moves:
        num_bytes[way_of(move)] += move.num_tokens * bytes_per_token
    return Measured(
        to_host_bytes=num_bytes["host"],
        to_host_s=seconds["host"],
        to_device_bytes=num_bytes["device"],
        to_device_s=seconds["device"],
    )


class Direction(NamedTuple):
    """How fast one direction of a link carries copies."""

    bandwidth: float = math.inf  # bytes per second
    copy_s: float = 0.0  # of each copy, besides its bytes

    def seconds(self, num_bytes: float) -> float:
        """Return how long a copy takes."""
        return self.copy_s + num_bytes / self.bandwidth


class LinkRates(NamedTuple):
    """How fast a link carries copies, each way.

    `both_ways` is the part of its rate that each direction keeps while both are busy. If None, the link carries one
    direction at a time.
    """

    to_host: Direction = Direction()
    to_device: Direction = Direction()
    both_ways: float | None = None

    @classmethod
    def alike(cls, bandwidth: float, copy_s: float = 0.0, both_ways: float | None = None) -> LinkRates:
        """Return a link that carries both ways equally fast."""
        return cls(Direction(bandwidth, copy_s), Direction(bandwidth, copy_s), both_ways)

    def seconds(self, move: Move, num_bytes: float) -> float:
        """Return how long one copy of a move takes; 0 within the device."""
        if not move.crosses:
            return 0.0
        return (self.to_host if move.target_tier == "host" else self.to_device).seconds(num_bytes)


AT_ONCE = LinkRates()


@dataclass(eq=False)
class Link:
    """Carries moves between the tiers while plans compute.

    A plan waits for all its `first` moves before it computes, and layer by layer for its moves before a wave. With L
    layers, C seconds of computing, and T seconds of transfers, layer 0 first: layer i computes for C/L, but not before
    i + 1 shares of T/L have arrived:

        end = max over i of (i + 1) T/L + (L - i) C/L,  so that  exposed = end - C = max(T/L, T + C/L - C)

    If the link is still busy when the plan begins, that time is added. With several waves, a layer first computes all
    but its attention; then each wave waits for its copies, and attends. Moves `behind` everything use the link while no
    plan waits for it, moves to the device first; a move that has begun is not stopped.

    A direction carries its copies one after the other. Copies that a plan makes layer by layer may overlap with those
    of the other direction (`LinkRates.both_ways`); moves `first` never do, nor do moves `behind` (Pensieve, 3.5.1).
    Each move is a copy of keys and one of values in every layer.

    >>> # 4 layers, computing 8 s: transfers of 4 s expose max(1, 4 + 2 - 8) = 1 s, and of 12 s max(3, 12 + 2 - 8) = 6 s

    Args:
        bytes_per_token: bytes of one slot of KV.
        rates: how fast copies are carried; by default they take no time.
        num_layers: layers of the model.
        attention: returns how many of a plan's seconds each wave's attention takes. If None, the waves divide all the
            seconds in proportion to their tokens.
        in_turn: whether all layers use the same slots of the device (`Memory.layers_in_turn`).
    """

    bytes_per_token: int = 0
    rates: LinkRates = AT_ONCE
    num_layers: int = 1
    attention: Callable[[Plan], Seq[float]] | None = None
    _: KW_ONLY
    in_turn: bool = False

    def __post_init__(self) -> None:
        self._free_s = 0.0  # when the link will have carried all moves that have begun
        self._queue: list[_Queued] = []  # moves that have not begun, to the device first, each way in given order
        self._landing: list[tuple[float, Plan]] = []  # plans whose moves have all begun, and when these complete

    def seconds(self, moves: Iterable[Move]) -> float:
        """Return how long these moves keep the link busy, one after the other."""
        copies_of_move = 2 * self.num_layers  # keys and values
        token_bytes = self.bytes_per_token / copies_of_move
        return copies_of_move * sum(self.rates.seconds(move, move.num_tokens * token_bytes) for move in moves)

    def carried(self, plan: Plan) -> Measured:
        """Count, each way, the plan's bytes and how long they keep the link busy."""
        ways: tuple[Way, ...] = ("host", "device")
        seconds = {way: self.seconds(move for move in plan.moves if move.target_tier == way) for way in ways}
        return traffic(plan.moves, self.bytes_per_token, seconds)

    def run(self, plan: Plan, computing_s: float, now: float) -> Measured:
        """Begin a plan that computes for `computing_s`; return what it carries and exposes."""
        self.advance(now)
        carried = self.carried(plan)
        if not any(move.crosses for move in plan.moves):
            return carried
        # From here on, times are relative to `now`: adding small durations to a large time would round them.
        first_s = self.seconds(move for move in plan.moves if move.moment == "first")
        link = max(0.0, self._free_s - now)
        exposed_s = link + first_s if first_s else 0.0
        link += first_s
        if layered := copies(plan, self.num_layers, in_turn=self.in_turn):
            late_s, link = self._layer_by_layer(plan, layered, computing_s, link - exposed_s)
            exposed_s, link = exposed_s + late_s, exposed_s + link
        self._free_s = now + link
        return carried._replace(moving_s=exposed_s, exposed_s=exposed_s)

    def _layer_by_layer(self, plan: Plan, layered: list[Copy], computing_s: float, link: float) -> tuple[float, float]:
        """Compute a plan from time 0, with a link that is free from `link` on.

        Returns:
            By how many seconds the copies delay the plan's end, and when the link is free again.
        """
        num_layers, num_waves, clock = self.num_layers, len(plan.waves), 0.0
        of_one_layer = layered[: len(layered) // num_layers]
        shares = num_layers * [self.seconds(copy.moves) / num_layers for copy in of_one_layer]
        layer_s, *attention = [seconds / num_layers for seconds in self._by_wave(plan, computing_s)]
        begun, needed = timetable(layered)
        carrying = _Carrying(self.rates.both_ways, link)
        for turn in range(-1, num_layers * num_waves):
            if turn >= 0:
                wave = turn % num_waves
                clock += 0.0 if wave else layer_s
                clock = max([clock, *map(carrying.end_of, needed.get(turn, ()))]) + attention[wave]
            for number in begun.get(turn, ()):
                carrying.begin(number, layered[number], clock, shares[number])
        ends = max([clock, *map(carrying.end_of, range(len(layered)))])
        return max(0.0, ends - computing_s), carrying.now

    def _by_wave(self, plan: Plan, computing_s: float) -> list[float]:
        """Return the seconds outside attention, then the seconds of each wave's attention.

        A single wave takes all the seconds.

        >>> # a plan of 10 s, in which three waves attend for 2, 3 and 1 s: [4, 2, 3, 1]
        """
        if len(plan.waves) == 1:
            return [0.0, computing_s]
        if self.attention is None:
            tokens = [sum(work.num_tokens for work in plan.work[start:stop]) for start, stop in plan.waves]
            return [0.0, *(computing_s * count / sum(tokens) for count in tokens)]
        waves = self.attention(plan)
        return [computing_s - sum(waves), *waves]

    def behind(self, plan: Plan, now: float) -> None:
        """Queue the moves of a plan without work, behind everything more urgent."""
        self.advance(now)
        for i, move in enumerate(sorted(plan.moves, key=_goes_out), 1):
            is_last = i == len(plan.moves)
            self._queue.append(_Queued(_goes_out(move), plan, now, self.seconds([move]), is_last))
        self._queue.sort(key=lambda queued: queued.goes_out)  # stable: each way stays in the order given

    def next_landing(self) -> float:
        """Return when the moves of the next plan without work complete, if nothing delays them.

        Returns infinity if there is no such plan.
        """
        if self._landing:
            return self._landing[0][0]
        free_s = self._free_s
        for queued in self._queue:
            free_s = max(free_s, queued.since_s) + queued.seconds
            if queued.is_last:
                return free_s
        return math.inf

    def landed(self, now: float) -> list[Plan]:
        """Remove and return the plans without work whose moves have completed by now, in order."""
        self.advance(now)
        plans = [plan for lands_s, plan in self._landing if lands_s <= now]
        del self._landing[: len(plans)]
        return plans

    def advance(self, now: float) -> None:
        """Begin every queued move for which the link was free before now."""
        while self._queue:
            _, plan, since_s, seconds, is_last = self._queue[0]
            begins = max(self._free_s, since_s)
            if begins >= now and begins + seconds > now:  # a plan that begins right now goes first
                return
            del self._queue[0]
            self._free_s = begins + seconds
            if is_last:
                self._landing.append((self._free_s, plan))


@dataclass(slots=True)
class _Begun:
    """A copy that was begun, and has not ended.

    Attributes:
        since: when it was begun.
        follows: copies that must end before.
        left: seconds that are left of it, at the link's full rate.
    """

    number: int
    since: float
    follows: tuple[int, ...]
    left: float


class _Carrying:
    """Carries the copies of one plan, in the order in which they are begun.

    The two directions have a queue each, and carry at `both_ways` of their rates while both are busy; without
    `both_ways`, all copies have one queue. Each is carried when the copies that it follows have ended.

    >>> copy = lambda move: Copy((move,), layer=0, begins=-1, needed=0, follows=())
    >>> carrying = _Carrying(both_ways=0.5, free_s=0.0)
    >>> carrying.begin(0, copy(Move("swap_out", 0, 0, 1, target_tier="host")), 0.0, 3.0)
    >>> carrying.begin(1, copy(Move("swap_in", 0, 0, 1, "host")), 0.0, 5.0)
    >>> carrying.end_of(0), carrying.end_of(1)  # at half of their rates until 6 s, then 2 s are left of the other
    (6.0, 8.0)

    Args:
        free_s: when the link is free.
    """

    def __init__(self, both_ways: float | None, free_s: float) -> None:
        self.both_ways, self.now = both_ways, free_s
        self._queues: dict[Way, deque[_Begun]] = {}  # of each direction that has copies
        self._ended: dict[int, float] = {}
        self._within: dict[int, _Begun] = {}  # copies that the link does not carry

    def begin(self, number: int, copy: Copy, now: float, seconds: float) -> None:
        """Begin a copy.

        Args:
            seconds: how long it takes by itself; 0: the link does not carry it.
        """
        begun = _Begun(number, now, copy.follows, seconds)
        if not seconds:
            self._within[number] = begun
            self._known_end(number)  # now: a chain of such copies may be long
        else:
            way = None if self.both_ways is None else copy.moves[0].target_tier
            self._queues.setdefault(way, deque()).append(begun)

    def end_of(self, number: int) -> float:
        """Return when a copy ends."""
        while (ends := self._known_end(number)) == math.inf:
            self._step()
        return ends

    def _known_end(self, number: int) -> float:
        """Return when a copy ends; infinity if this is not known yet."""
        if number in self._within and (ready := self._ready(self._within[number])) < math.inf:
            del self._within[number]
            self._ended[number] = ready
        return self._ended.get(number, math.inf)

    def _ready(self, begun: _Begun) -> float:
        return max([begun.since, *map(self._known_end, begun.follows)])

    def _step(self) -> None:
        """Go on to the next moment at which a copy ends, or can be carried."""
        heads = [(queue, self._ready(queue[0])) for queue in self._queues.values() if queue]
        carried = [queue for queue, ready in heads if ready <= self.now]
        rate = self.both_ways if self.both_ways is not None and len(carried) > 1 else 1.0
        ends = [(queue, self.now + queue[0].left / rate) for queue in carried]
        until = min([*(ready for _, ready in heads if ready > self.now), *(end for _, end in ends)])
        for queue, end in ends:
            queue[0].left -= (until - self.now) * rate
            if end == until:
                self._ended[queue.popleft().number] = until
        self.now = until


class _Queued(NamedTuple):
    """A move `behind` everything, which has not begun."""

    goes_out: bool
    plan: Plan
    since_s: float
    seconds: float
    is_last: bool  # whether it is the last move of its plan


def _goes_out(move: Move) -> bool:
    return move.target_tier == "host"
