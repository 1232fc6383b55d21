"""Times a plan layer by layer, as device, host and link work together (FluidInfer; Pensieve)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.execute.copies import Copy, Way, timetable, way_of


class PlanTimes(NamedTuple):
    """How many seconds the parts of a plan compute, in all layers together."""

    token_wise: Seq[float]  # of each pass, without attention
    waves: Seq[float]  # of each wave's attention, by the device or by the host


class LayerByLayer:
    """Computes a plan from time 0 on, with copies beside the waves.

    In each layer, each pass computes its token-wise operators, then its waves, each after the copies that it needs. A
    wave whose KV lies on the host is attended there, meanwhile: it begins when its queries, keys and values have
    arrived, and the pass goes on with the next layer when its outputs are back. So with two passes the device computes
    one while the host attends the other.

    >>> # 1 pass, a layer: token-wise 3 s, attention by the device 2 s, by the host 4 s: 3 + max(2, 4) = 7 s
    >>> # 2 passes, each token-wise 3 s, then 4 s by the host: the host attends at 3 to 7 s and 7 to 11 s

    Args:
        copies: the plan's copies in all layers.
        shares: seconds that the link takes for each copy of a layer.
        carrying: the link.

    Attributes:
        exposed_s: how long computing waited for copies.
        awaited_s: how long computing waited for the host's attention.
        on_host_s: how long the host attended.
    """

    def __init__(
        self, plan: Plan, times: PlanTimes, num_layers: int, copies: list[Copy], shares: Seq[float], carrying: Carrying
    ) -> None:
        self.plan, self.times, self.num_layers = plan, times, num_layers
        self.copies, self.carrying = copies, carrying
        self.shares = [*shares] * num_layers
        self.begun, self.needed = timetable(copies)
        self.exposed_s = self.awaited_s = self.on_host_s = 0.0
        self.clock = self.host_free = 0.0

    def compute(self, activations_s: Callable[[int], tuple[float, float]] | None) -> None:
        """Compute all layers.

        Args:
            activations_s: returns how long so many tokens take to the host in a layer, and their outputs back; None:
                the host is the device.
        """
        tiers, waves = self.plan.tiers, self.plan.waves
        passes = self.plan.layout.passes or (slice(0, len(self.plan.work)),)
        tokens = [sum(work.num_tokens for work in self.plan.work[start:stop]) for start, stop in waves]
        of_pass = [[i for i, wave in enumerate(waves) if one.start <= wave.start < one.stop] for one in passes]
        back = [0.0] * len(passes)  # when the host's outputs of each pass have arrived
        self._begin(-1, 0.0)
        for layer in range(self.num_layers):
            for number, token_wise_s in enumerate(self.times.token_wise):
                self.awaited_s += max(0.0, back[number] - self.clock)
                self.clock = made = max(self.clock, back[number]) + token_wise_s / self.num_layers
                for wave in of_pass[number]:
                    turn, seconds = layer * len(waves) + wave, self.times.waves[wave] / self.num_layers
                    if tiers[wave] == "host" and activations_s is not None:
                        down_s, up_s = activations_s(tokens[wave])
                        ends = self._attend_on_host(turn, made + down_s, seconds)
                        back[number] = max(back[number], ends + up_s)
                    else:
                        ends = self.clock = self._arrived(turn) + seconds
                    self._begin(turn, ends)
        self.awaited_s += max(0.0, max(back) - self.clock)
        self.clock = max([self.clock, *back])
        ends = max([self.clock, *map(self.carrying.end_of, range(len(self.copies)))])
        self.exposed_s += ends - self.clock

    def _begin(self, turn: int, now: float) -> None:
        """Begin the copies that waited for this wave of a layer."""
        for number in self.begun.get(turn, ()):
            self.carrying.begin(number, self.copies[number], now, self.shares[number])

    def _arrived(self, turn: int) -> float:
        """Return when the copies have arrived that a wave of a layer needs."""
        arrived = max([self.clock, *map(self.carrying.end_of, self.needed.get(turn, ()))])
        self.exposed_s += arrived - self.clock
        return arrived

    def _attend_on_host(self, turn: int, arrived: float, seconds: float) -> float:
        """Attend a wave of a layer on the host, and return when it ends."""
        begins = max([self.host_free, arrived, *map(self.carrying.end_of, self.needed.get(turn, ()))])
        self.on_host_s += seconds
        self.host_free = begins + seconds
        return self.host_free


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


class Carrying:
    """Carries the copies of one plan, in the order in which they are begun.

    The two directions have a queue each, and carry at `both_ways` of their rates while both are busy; without
    `both_ways`, all copies have one queue. Each is carried when the copies that it follows have ended.

    >>> copy = lambda move: Copy((move,), layer=0, begins=-1, needed=0, follows=())
    >>> carrying = Carrying(both_ways=0.5, free_s=0.0)
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
            way = None if self.both_ways is None else way_of(copy.moves[0])
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
