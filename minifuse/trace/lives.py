"""Follows a run's requests in its trace: when each waited, began and got its tokens."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

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
    token_times: array[float] = field(default_factory=lambda: array("d"))
    ended_s: float = math.nan
    reason: str = FinishReason.INTERRUPTED.value  # until a step says otherwise
    computed: dict[str, Spans] = field(default_factory=lambda: defaultdict(Spans))  # by type of cell
    history: int = 0  # leading tokens of its prompt that earlier requests have computed
    user: str | None = None
    priority: int = 0
    conversation: str | None = None
    waits_since: int | None = 0  # how many had overtaken it when it began to wait; None: it does not wait
    overtaken: int = 0  # how many overtook it in waits that have ended

    @property
    def has_ended(self) -> bool:
        return not math.isnan(self.ended_s)

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
