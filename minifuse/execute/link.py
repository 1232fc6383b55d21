"""The link between device and host in virtual time: a resource with a bandwidth, busy beside the device (Pensieve)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from minifuse.core.measured import Measured
from minifuse.core.plan import Move, Plan
from minifuse.execute.copies import Copy, Key, copies, followed, timetable

__all__ = ["Link", "traffic"]


def traffic(moves: Iterable[Move], bytes_per_token: int, seconds: tuple[float, float] = (0.0, 0.0)) -> Measured:
    """What these moves carry in each direction; `seconds` are for how long: to the host, and to the device."""
    tokens = {"host": 0, "device": 0}
    for move in moves:
        if move.crosses:
            tokens[move.target_tier] += move.num_tokens
    to_host, to_device = (tokens[tier] * bytes_per_token for tier in ("host", "device"))
    return Measured(to_host_bytes=to_host, to_host_s=seconds[0], to_device_bytes=to_device, to_device_s=seconds[1])


class Link:
    """Carries the bytes of moves between the tiers one after the other, beside the device's computing.

    A plan waits for its moves before anything at once, and for its moves before a wave layer by layer. With L layers,
    C seconds of computing and T seconds of transfers that are there for layer 0 first, layer i may compute once i + 1
    shares T/L have arrived, and takes C/L:

        end = max over i of (i + 1) T/L + (L - i) C/L,  so that  exposed = end - C = max(T/L, T + C/L - C)

    and as much more as the link is still busy when the plan begins. Of several waves each takes what its attention
    takes, and waits after the rest of its layer has been computed. Moves behind everything use the link while no plan
    waits for it, those to the device first; one that has begun is not stopped.

    >>> # 4 layers, computing 8 s: transfers of 4 s expose max(1, 4 + 2 - 8) = 1 s, and of 12 s max(3, 12 + 2 - 8) = 6 s

    Args:
        bytes_per_token: of one slot of KV.
        bandwidth: bytes per second; without a limit, transfers take no time.
        num_layers: of the model.
        attention: seconds that each wave of a plan attends, of those that the plan computes; None: all of them, divided
            among the waves by tokens.
        in_turn: all layers have the same slots of the device (`Memory.layers_in_turn`).
    """

    def __init__(
        self,
        bytes_per_token: int = 0,
        bandwidth: float = math.inf,
        num_layers: int = 1,
        attention: Callable[[Plan], Sequence[float]] | None = None,
        *,
        in_turn: bool = False,
    ) -> None:
        self.bytes_per_token = bytes_per_token
        self.num_layers = num_layers
        self._attention = attention
        self._in_turn = in_turn
        self._token_s = bytes_per_token / bandwidth
        self._free_s = 0.0  # when the link has carried all that it has begun with
        # Moves behind everything that have not begun, a heap: those to the device first, then in the order given.
        self._queue: list[tuple[bool, int, _Queued]] = []
        self._num_queued = 0
        self._foreseen: tuple[tuple[float, int, int], float | None] | None = None  # a state, and the next landing then
        self._landing: deque[tuple[float, Plan]] = deque()  # plans of which every move has begun, and when they land

    def seconds(self, moves: Iterable[Move]) -> float:
        """For how long these moves keep the link busy."""
        return self._token_s * sum(move.num_tokens for move in moves if move.crosses)

    def carried(self, plan: Plan) -> Measured:
        """The plan's bytes, and for how long they keep the link busy, by direction."""
        busy = (self.seconds(move for move in plan.moves if move.target_tier == tier) for tier in ("host", "device"))
        return traffic(plan.moves, self.bytes_per_token, (next(busy), next(busy)))

    def run(self, plan: Plan, computing_s: float, now: float) -> Measured:
        """A plan begins that waits for its moves and computes for so long. Returns what it carries, and the exposed."""
        self.advance(now)
        carried = self.carried(plan)
        if not any(move.crosses for move in plan.moves):
            return carried
        # From here on times are counted from now: adding small durations to a large time would round them.
        first = self.carried(replace(plan, moves=tuple(move for move in plan.moves if move.moment == "first")))
        first_s = first.to_host_s + first.to_device_s
        link = max(0.0, self._free_s - now)
        exposed_s = link + first_s if first_s else 0.0
        link += first_s
        if layered := copies(plan, in_turn=self._in_turn):
            late_s, link = self._layer_by_layer(plan, layered, computing_s, link - exposed_s)
            exposed_s, link = exposed_s + late_s, exposed_s + link
        self._free_s = now + link
        return carried._replace(moving_s=exposed_s, exposed_s=exposed_s)

    def _layer_by_layer(self, plan: Plan, layered: list[Copy], computing_s: float, link: float) -> tuple[float, float]:
        """A plan computes from time 0 on, with a link that is free from time `link` on. Returns the seconds by which
        it ends later than it would without copies, and when the link is free again."""
        num_layers, clock = self.num_layers, 0.0
        shares = [self.seconds(copy.moves) / num_layers for copy in layered]
        layer_s, *attention = [seconds / num_layers for seconds in self._by_wave(plan, computing_s)]
        num_waves = len(attention)
        begun, needed = timetable(layered, num_waves, num_layers)
        copied: dict[Key, float] = {}  # when each is there
        for turn in range(-1, num_layers * num_waves):
            if turn >= 0:
                wave = turn % num_waves
                clock += 0.0 if wave else layer_s
                clock = max([clock, *(copied[key] for key in needed.get(turn, ()))]) + attention[wave]
            for layer, number in begun.get(turn, ()):  # goes on the link, in order
                ready = max([clock, *(copied[key] for key in followed(layered, layer, number))])
                if shares[number]:
                    ready = link = max(link, ready) + shares[number]
                copied[layer, number] = ready
        return max(0.0, max([clock, *copied.values()]) - computing_s), link

    def _by_wave(self, plan: Plan, computing_s: float) -> list[float]:
        """The seconds of a plan's computing before the waves, in all layers, and of each wave. A single wave takes all.

        >>> # 10 s, of which three waves attend for 2, 3 and 1 s: 4, 2, 3 and 1
        """
        if len(plan.waves) == 1:
            return [0.0, computing_s]
        if self._attention is None:
            tokens = [sum(work.stop - work.start for work in plan.work[slice(*wave)]) for wave in plan.waves]
            return [0.0, *(computing_s * count / sum(tokens) for count in tokens)]
        waves = self._attention(plan)
        return [computing_s - sum(waves), *waves]

    def behind(self, plan: Plan, now: float) -> None:
        """Begin with the moves of a plan without work as soon as the link has nothing more urgent to carry."""
        self.advance(now)
        moves = sorted(plan.moves, key=_goes_out)
        for i, move in enumerate(moves, 1):
            self._num_queued += 1
            queued = _Queued(plan, now, self.seconds([move]), is_last=i == len(moves))
            heapq.heappush(self._queue, (_goes_out(move), self._num_queued, queued))

    def next_landing(self) -> float | None:
        """When the next plan without work will have landed, if no other needs the link before; None: there is none."""
        if self._landing:
            return self._landing[0][0]
        state = self._free_s, self._num_queued, len(self._queue)
        if self._foreseen is None or self._foreseen[0] != state:
            self._foreseen = state, self._foresee()
        return self._foreseen[1]

    def _foresee(self) -> float | None:
        free_s = self._free_s
        for _, _, queued in sorted(self._queue):
            free_s = max(free_s, queued.since_s) + queued.seconds
            if queued.is_last:
                return free_s
        return None

    def landed(self, now: float) -> list[Plan]:
        """The plans without work that have landed by now, in the order in which they did."""
        self.advance(now)
        plans = []
        while self._landing and self._landing[0][0] <= now:
            plans.append(self._landing.popleft()[1])
        return plans

    def advance(self, now: float) -> None:
        """Begin with every move behind everything for which the link was free before now."""
        while self._queue:
            plan, since_s, seconds, is_last = self._queue[0][2]
            begins = max(self._free_s, since_s)
            if begins >= now and begins + seconds > now:  # a plan that begins just now may need the link first
                return
            heapq.heappop(self._queue)
            self._free_s = begins + seconds
            if is_last:
                self._landing.append((self._free_s, plan))


class _Queued(NamedTuple):
    """A move behind everything that has not begun."""

    plan: Plan
    since_s: float
    seconds: float
    is_last: bool  # of its plan


def _goes_out(move: Move) -> bool:
    return move.target_tier == "host"
