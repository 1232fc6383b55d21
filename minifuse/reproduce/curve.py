"""A contender under load: the technique and its options, the outcome of a run, and the curve over all rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from statistics import median
from typing import Any

from minifuse.reproduce.experiment import Value
from minifuse.trace.metrics import Metrics

ALIKE = 0.02  # throughputs that differ by less are the same


@dataclass(frozen=True, slots=True)
class Contender:
    """A technique and its options, without the largest batch if that is to be chosen."""

    key: str  # of its values in a point
    head: str  # of its columns
    technique: str
    options: Mapping[str, Any] = field(default_factory=dict)
    twice: str | None = None  # a type of cell whose largest batch is twice that of the other types

    def sized(self, max_batch: int) -> dict[str, Any]:
        """Its options with this largest batch."""
        options = {**self.options, "batching.max_batch": max_batch}
        return options if self.twice is None else {**options, "batching.max_batches": f"{self.twice}={2 * max_batch}"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run. Times are seconds, of the requests that were served; throughput is requests per second,
    from the first arrival to the end of the last request."""

    throughput: float
    p50: float
    p90: float
    p99: float
    queueing_p50: float
    queueing_p90: float
    queueing_p99: float
    computing_p50: float
    computing_p90: float
    computing_p99: float
    mean_batch: float
    idle_share: float
    gathering_share: float  # of the run's time

    @classmethod
    def of(cls, metrics: Metrics) -> Outcome:
        """From the metrics of a run's trace."""
        latencies = {
            f"{prefix}p{percent}": metrics[name][f"p{percent}"]
            for prefix, name in (("", "e2e_s"), ("queueing_", "queueing_s"), ("computing_", "computing_s"))
            for percent in (50, 90, 99)
        }
        return cls(
            throughput=metrics["throughput"]["requests_per_s"],
            **latencies,
            mean_batch=metrics["mean_batch_size"],
            idle_share=metrics["tokens"]["idle_share"],
            gathering_share=metrics["gathers"]["seconds"] / metrics["duration_s"],
        )

    @classmethod
    def median(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Of each value the median over several runs."""
        return cls(**{name.name: median(getattr(one, name.name) for one in outcomes) for name in fields(cls)})

    def values(self, key: str) -> dict[str, Value]:
        """As a contender's values of a point; times in ms."""
        values: dict[str, Value] = {}
        for name in (part.name for part in fields(self)):
            value = getattr(self, name)
            values |= {f"{key}_{name}_ms": value * 1e3} if name[-2:].isdigit() else {f"{key}_{name}": value}
        return values


@dataclass(slots=True)
class Curve:
    """A contender under load: its capacity with all requests at once, and its outcome at each rate (ascending)."""

    contender: Contender
    max_batch: int
    capacity: float  # requests per second
    points: dict[float, Outcome] = field(default_factory=dict)  # by the rate offered

    @property
    def peak(self) -> float:
        """The most requests per second that it served: of any rate, or of all at once."""
        return max([self.capacity, *(outcome.throughput for outcome in self.points.values())])

    @property
    def lowest_p90(self) -> float:
        """Seconds."""
        return min(outcome.p90 for outcome in self.points.values())

    @property
    def saturated(self) -> bool:
        """Whether more load has stopped to help: the last rate exceeds the capacity, and throughput did not grow."""
        if len(self.points) < 2:
            return False
        *before, last = (outcome.throughput for outcome in self.points.values())
        return max(self.points) > self.capacity and last <= (1 + ALIKE) * max(before)

    def throughput_at(self, p90_s: float) -> float | None:
        """The throughput at which the 90th percentile reaches `p90_s`: on the straight line between two neighbouring
        rates, the last time that it is crossed. If it is never reached, that of the last rate; None if always exceeded.

        >>> # 100 requests/s at 10 ms, 200 at 30 ms: 150 at 20 ms
        """
        return self.load_at(p90_s, [outcome.throughput for outcome in self.points.values()])

    def load_at(self, p90_s: float, loads: Sequence[float]) -> float | None:
        """As `throughput_at`, but of another measure of the load, given for each rate."""
        return crossing([(outcome.p90, load) for outcome, load in zip(self.points.values(), loads, strict=True)], p90_s)


def crossing(points: Sequence[tuple[float, float]], level_s: float) -> float | None:
    """The load at which a latency reaches a level, from pairs of latency and load in the order of the loads.

    On the straight line between two neighbours, the last time that it is crossed. If it is never reached, the last
    load; None if the latency always exceeds the level.

    >>> crossing([(0.01, 100.0), (0.03, 200.0)], 0.02)
    150.0
    """
    if not points or min(points)[0] > level_s:
        return None
    for (low_s, low), (high_s, high) in reversed(list(pairwise(points))):
        if high_s <= level_s:
            return high
        if low_s <= level_s:
            return low + (level_s - low_s) / (high_s - low_s) * (high - low)
    return points[-1][1]
