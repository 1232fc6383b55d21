"""Simulates the link between device and host, which works while the device computes (Pensieve)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minifuse.core.measured import Measured
from minifuse.core.plan import Move, Plan
from minifuse.execute.copies import Way, copies, way_of
from minifuse.execute.layers import Carrying, LayerByLayer, PlanTimes


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
        times: returns how long the parts of a plan compute. If None, the waves divide all the seconds in proportion to
            their tokens.
        activations: bytes of a token that go to the host and come back, in each layer, where the host attends. If None,
            the host is the device: a wave on the host is attended like any other.
    """

    bytes_per_token: int = 0
    rates: LinkRates = AT_ONCE
    num_layers: int = 1
    times: Callable[[Plan], PlanTimes] | None = None
    activations: tuple[int, int] | None = None

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
        seconds = {way: self.seconds(move for move in plan.moves if way_of(move) == way) for way in ways}
        return traffic(plan.moves, self.bytes_per_token, seconds)

    def run(self, plan: Plan, computing_s: float, now: float) -> Measured:
        """Begin a plan that computes for `computing_s`; return what it carries and exposes."""
        self.advance(now)
        carried = self.carried(plan)
        attended = self.activations is not None and "host" in plan.tiers
        if not attended and not any(move.crosses for move in plan.moves):
            return carried
        # From here on, times are relative to `now`: adding small durations to a large time would round them.
        first_s = self.seconds(move for move in plan.moves if move.moment == "first")
        link = max(0.0, self._free_s - now)
        exposed_s = link + first_s if first_s else 0.0
        link += first_s
        layered = copies(plan, self.num_layers)
        if layered or attended:
            of_one_layer = layered[: len(layered) // self.num_layers]
            shares = [self.seconds(copy.moves) / self.num_layers for copy in of_one_layer]
            carrying = Carrying(self.rates.both_ways, link - exposed_s)
            run = LayerByLayer(plan, self._times(plan, computing_s), self.num_layers, layered, shares, carrying)
            run.compute(self._activations_s if attended else None)
            exposed_s, link = exposed_s + run.exposed_s, exposed_s + carrying.now
            carried = carried._replace(on_host_s=run.on_host_s, awaited_s=run.awaited_s)
        self._free_s = now + link
        return carried._replace(moving_s=exposed_s, exposed_s=exposed_s)

    def _activations_s(self, num_tokens: int) -> tuple[float, float]:
        """Return how long a layer's inputs take to the host, and its outputs back."""
        down, up = self.activations or (0, 0)
        return self.rates.to_host.seconds(num_tokens * down), self.rates.to_device.seconds(num_tokens * up)

    def _times(self, plan: Plan, computing_s: float) -> PlanTimes:
        """Return how long the parts of a plan compute.

        A single wave on the device takes all the seconds.
        """
        if self.times is not None and (len(plan.waves) > 1 or "host" in plan.tiers):
            return self.times(plan)
        tokens = [sum(work.num_tokens for work in plan.work[start:stop]) for start, stop in plan.waves]
        return PlanTimes([0.0] * len(plan.parts), [computing_s * count / sum(tokens) for count in tokens])

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
