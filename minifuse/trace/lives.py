"""Follows a run's requests in its trace: when each waited, began and got its tokens."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from minifuse.core.request import FinishReason


class Spans:
    """Keeps the positions of computed tokens as half-open spans, usually only one."""

    __slots__ = ("bounds",)

    def __init__(self) -> None:
        self.bounds: list[int] = []  # start, stop, start, stop ... ascending

    def add(self, start: int, stop: int) -> int:
        """Add the tokens [start, stop); return how many of them had been added before.

        >>> spans = Spans()
        >>> spans.add(0, 5), spans.add(5, 6), spans.add(9, 11), spans.add(4, 10), spans.bounds
        (0, 0, 0, 3, [0, 11])
        """
        bounds = self.bounds
        if start >= stop:
            return 0
        if bounds and bounds[-1] == start:  # as in every decode step
            bounds[-1] = stop
            return 0
        if not bounds or bounds[-1] < start:
            bounds += (start, stop)
            return 0
        # The spans that touch [start, stop): from the first that does not end before it, to the last that begins in it.
        first = bisect_left(bounds, start) // 2 * 2
        last = (bisect_left(bounds, stop + 1) + 1) // 2 * 2
        if first == last:
            bounds[first:first] = (start, stop)
            return 0
        touched = bounds[first:last]
        starts, stops = touched[::2], touched[1::2]
        again = sum(max(0, min(b, stop) - max(a, start)) for a, b in zip(starts, stops, strict=True))
        bounds[first:last] = [min([start, *starts]), max([stop, *stops])]
        return again


@dataclass(slots=True)
class Life:
    """One request, followed event by event."""

    arrival_s: float
    prompt_tokens: int
    arrived: bool = True  # False: the request that this one follows has not ended
    started_s: float = math.inf
    admitted_s: float = math.inf  # for the first time
    evicted_s: float | None = None  # None: the request is not waiting to be readmitted
    evictions: list[tuple[float, float]] = field(default_factory=list)  # times of each eviction and readmission
    token_times: array[float] = field(default_factory=lambda: array("d"))
    ended_s: float = math.nan
    reason: str = FinishReason.INTERRUPTED.value  # until a step says otherwise
    computed: dict[str, Spans] = field(default_factory=lambda: defaultdict(Spans))  # by type of cell
    history: int = 0  # leading tokens of its prompt that earlier requests have computed
    user: str | None = None
    priority: int = 0
    conversation: str | None = None

    def admit(self, now: float) -> None:
        """Record an admission: the first one, or one after an eviction."""
        self.admitted_s = min(self.admitted_s, now)
        if self.evicted_s is not None:
            self.evictions.append((self.evicted_s, now))
            self.evicted_s = None

    def waits(self) -> list[tuple[float, float]]:
        """Return the spans in which the request waited to be admitted.

        A span ends when the request is admitted or ends; otherwise it is infinite.
        """
        if not self.arrived:
            return []
        end_s = math.inf if math.isnan(self.ended_s) else self.ended_s
        found = [(self.arrival_s, max(self.arrival_s, min(self.admitted_s, end_s))), *self.evictions]
        return found if self.evicted_s is None else [*found, (self.evicted_s, end_s)]

    @property
    def finished(self) -> bool:
        return self.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value)

    @property
    def latencies(self) -> dict[str, float]:
        """Return the latencies of a finished request, by metric."""
        times = self.token_times
        found = {
            "queueing_s": self.started_s - self.arrival_s,
            "computing_s": self.ended_s - self.started_s,
            "e2e_s": self.ended_s - self.arrival_s,
        }
        if times:
            found["ttft_s"] = times[0] - self.arrival_s
            found["normalized_latency_s"] = found["e2e_s"] / len(times)
        if len(times) > 1:
            found["tpot_s"] = (self.ended_s - times[0]) / (len(times) - 1)
        return found


def most_overtaken(lives: Iterable[Life]) -> int:
    """Return the largest number of requests that overtook the same request.

    A request overtakes another if it arrives later, and is first admitted while the other waits.

    A request waits from its arrival until it is admitted, and from each eviction until it is admitted again. Requests
    that arrive, or are admitted, at the same time do not overtake each other. The number is computed once, when the
    run has ended, so that iterations pay nothing.

    >>> a, b, c = (Life(arrival_s=float(i), prompt_tokens=1) for i in range(3))
    >>> a.admitted_s, b.admitted_s, c.admitted_s = 5.0, 3.0, 4.0
    >>> most_overtaken([a, b, c])  # b and c before a
    2
    """
    most = 0
    begun: list[float] = []  # times at which later arrivals were admitted; negated, so that most are appended
    latest_first = sorted(lives, key=attrgetter("arrival_s"), reverse=True)
    for _, together in groupby(latest_first, key=attrgetter("arrival_s")):
        arrived = list(together)
        for life in arrived:
            passed = sum(bisect_right(begun, -start) - bisect_right(begun, -stop) for start, stop in life.waits())
            most = max(most, passed)
        for life in arrived:
            if life.admitted_s < math.inf:
                insort(begun, -life.admitted_s)
    return most
