"""Simulates the link between device and host, which works while the device computes (Pensieve)."""

from __future__ import annotations

import math
from collections import Counter
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

    A direction carries its copies one after the other. Within a plan, copies to the host and to the device may overlap
    (`LinkRates.both_ways`); Pensieve, 3.5.1, avoids this for moves behind everything. While a copy overlaps with the
    other direction, both are slower: the copy ends later, and so does whatever the other direction carries next.

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
        """Return how long these moves keep the link busy.

        Moves that are made at once are one copy each, the others one copy in each layer.
        """
        seconds = 0.0
        for move in moves:
            num_copies = 1 if move.moment == "first" else self.num_layers
            num_bytes = move.num_tokens * self.bytes_per_token
            seconds += num_copies * self.rates.seconds(move, num_bytes / num_copies)
        return seconds

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
        copied: dict[int, float] = {}  # when each copy has arrived
        free: dict[Tier, float] = {"host": link, "device": link}  # when each direction is free again
        for turn in range(-1, num_layers * num_waves):
            if turn >= 0:
                wave = turn % num_waves
                clock += 0.0 if wave else layer_s
                clock = max([clock, *(copied[number] for number in needed.get(turn, ()))]) + attention[wave]
            for number in begun.get(turn, ()):  # carried by the link, in order
                ready = max([clock, *(copied[before] for before in layered[number].follows)])
                if shares[number]:
                    ready = self._carry(layered[number].moves[0].target_tier, ready, shares[number], free)
                copied[number] = ready
        return max(0.0, max([clock, *copied.values()]) - computing_s), max(free.values())

    def _carry(self, way: Tier, ready: float, alone_s: float, free: dict[Tier, float]) -> float:
        """Carry one copy that is ready now, and takes `alone_s` by itself; return when it ends.

        >>> # At half of its rate, a copy of 4 s beside one that the other direction carries from 0 to 4 s has done 2 s
        >>> # of its work at 4 s, and ends at 6 s. What the other direction carries next begins at 6 s, too.

        Args:
            free: when each direction is free again; this changes.
        """
        other: Tier = "device" if way == "host" else "host"
        rate = self.rates.both_ways
        begins = max(free[way], ready) if rate is not None else max(*free.values(), ready)
        beside_s = 0.0 if rate is None else max(0.0, min(free[other] - begins, alone_s / rate))
        lost_s = beside_s * (1 - (rate or 1.0))
        free[way] = begins + alone_s + lost_s
        free[other] += lost_s
        return free[way]

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


class _Queued(NamedTuple):
    """A move `behind` everything, which has not begun."""

    goes_out: bool
    plan: Plan
    since_s: float
    seconds: float
    is_last: bool  # whether it is the last move of its plan


def _goes_out(move: Move) -> bool:
    return move.target_tier == "host"
