"""Open loops: contenders under a growing load, the same requests for each, and what is read from their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from minifuse.metrics import Metrics
from minifuse.reproduce.experiment import SHARE, Value

__all__ = [
    "AT_ONCE",
    "Contender",
    "Curve",
    "Outcome",
    "best_size",
    "cuts",
    "in_turns",
    "load_at",
    "num_requests",
    "offered",
    "saturated",
    "throughput_at",
    "with_moderate",
]

AT_ONCE = float("inf")  # the rate at which all requests arrive at once: what that yields is the capacity
ALIKE = 0.02  # throughputs that differ by less are the same
MODERATE = 0.5  # of the baseline's peak (2.7)
WELL_MODERATE = 0.4


@dataclass(frozen=True, slots=True)
class Contender:
    """Who takes part: a technique and its options, without the largest batch if that is to be chosen.

    `cellular` ones pay for scheduling and gathering in virtual time, `operators` are batched operator by operator.
    """

    key: str  # of its values in a point
    head: str  # of its columns
    technique: str
    options: Mapping[str, Any] = field(default_factory=dict)
    twice: str | None = None  # a type of cell whose largest batch is twice that of the others

    def sized(self, max_batch: int) -> dict[str, Any]:
        """Its options with this largest batch."""
        found = {**self.options, "batching.max_batch": max_batch}
        return found if self.twice is None else {**found, "batching.max_batches": f"{self.twice}={2 * max_batch}"}

    @property
    def cellular(self) -> bool:
        return self.technique == "cellular"

    @property
    def operators(self) -> bool:
        return self.options.get("batching.per") == "operator"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run. Times are seconds, of the requests that were served; throughput is requests per second,
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
    duration: float

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
            duration=metrics["duration_s"],
        )

    @classmethod
    def median(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Of each value the median over several runs."""
        return cls(**{name.name: median(getattr(one, name.name) for one in outcomes) for name in fields(cls)})

    def values(self, key: str) -> dict[str, Value]:
        """As a contender's values of a point; times in ms."""
        times = ("p50", "p90", "p99")
        return {
            f"{key}_throughput": self.throughput,
            **{f"{key}_{name}_ms": getattr(self, name) * 1e3 for name in times},
            **{f"{key}_{what}_{name}_ms": getattr(self, f"{what}_{name}") * 1e3 for what in WAITS for name in times},
            f"{key}_mean_batch": self.mean_batch,
            f"{key}_idle_share": self.idle_share,
            f"{key}_gathering_share": self.gathering_share,
        }


WAITS = ("queueing", "computing")


@dataclass(slots=True)
class Curve:
    """A contender under load: what it makes of everything at once, and of each rate (ascending)."""

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


def in_turns(runs: Mapping[str, Callable[[], Outcome]], rounds: int, first: int = 0) -> dict[str, Outcome]:
    """Medians over rounds in which contenders take turns, each round begun by another one; the first by `first`."""
    names = list(runs)
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for number in range(first, first + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(runs[name]())
    return {name: Outcome.median(outcomes) for name, outcomes in found.items()}


def best_size(capacities: Mapping[int, float]) -> int:
    """The smallest largest-batch whose capacity is that of the best, or as good as.

    >>> best_size({64: 700.0, 128: 985.0, 256: 1000.0})
    128
    """
    enough = (1 - ALIKE) * max(capacities.values())
    return min(size for size, capacity in capacities.items() if capacity >= enough)


def offered(rates: Sequence[float], peak: float) -> tuple[float, ...]:
    """Requests per second: `rates` themselves, or shares of `peak` if they are no larger than shares are.

    >>> offered((0.5, 1.2), 300.0)
    (150.0, 360.0)
    """
    return tuple(rate * peak for rate in rates) if max(rates) <= SHARE else tuple(rates)


def with_moderate(rates: tuple[float, ...], capacity: float) -> tuple[float, ...]:
    """These rates, and one that is a moderate load for the slowest contender if none of them is.

    >>> with_moderate((100.0, 500.0), 150.0)
    (60.0, 100.0, 500.0)
    """
    return rates if rates[0] < MODERATE * capacity else (WELL_MODERATE * capacity, *rates)


def num_requests(most: int, rate: float, peak: float) -> int:
    """How many requests arrive at a rate: fewer at low ones, so that runs last about as long, but at least a quarter.

    >>> num_requests(800, 100.0, 1000.0), num_requests(800, 500.0, 1000.0), num_requests(800, 1500.0, 1000.0)
    (200, 400, 800)
    """
    return max(-(-most // 4), min(most, round(most * rate / peak)))


def saturated(curve: Curve) -> bool:
    """Whether more load has stopped to help: the last rate exceeds the capacity, and throughput did not grow."""
    if len(curve.points) < 2:
        return False
    *before, last = (outcome.throughput for outcome in curve.points.values())
    return max(curve.points) > curve.capacity and last <= (1 + ALIKE) * max(before)


def load_at(
    curves: Mapping[str, Curve],
    rates: Sequence[float],
    run: Callable[[Curve, float], Outcome],
    rounds: int,
    say: Callable[[str], None],
) -> None:
    """Offer each rate to every contender whose throughput still grows, and note what came of it.

    Args:
        rates: ascending.
        run: one contender's run at one rate.
    """
    for number, rate in enumerate(rates):
        runs = {name: partial(run, curve, rate) for name, curve in curves.items() if not saturated(curve)}
        if not runs:
            return
        say(f"{rate:,.0f} requests/s" if rate >= 1000 else f"{rate:.3g} requests/s")
        for name, outcome in in_turns(runs, rounds, number).items():
            curves[name].points[rate] = outcome


def throughput_at(curve: Curve, p90_s: float) -> float | None:
    """The throughput at which the 90th percentile reaches this: on the straight line between two rates next to each
    other, the last time that it is crossed. Where it is never reached, that of the last rate; None if always exceeded.

    >>> # 100 requests/s at 10 ms, 200 at 30 ms: 150 at 20 ms
    """
    outcomes = list(curve.points.values())
    if not outcomes or min(outcome.p90 for outcome in outcomes) > p90_s:
        return None
    for low, high in reversed(list(pairwise(outcomes))):
        if high.p90 <= p90_s:
            return high.throughput
        if low.p90 <= p90_s:
            part = (p90_s - low.p90) / (high.p90 - low.p90)
            return low.throughput + part * (high.throughput - low.throughput)
    return outcomes[-1].throughput


def cuts(ours: Curve, *baselines: Curve) -> dict[float, float]:
    """By rate: the part by which our 90th percentile is below the lowest of the baselines', at moderate load: less than
    half of the highest of their peaks."""
    found = {}
    for rate, outcome in ours.points.items():
        theirs = [curve.points[rate].p90 for curve in baselines if rate in curve.points]
        if theirs and rate < MODERATE * max(curve.peak for curve in baselines):
            found[rate] = 1 - outcome.p90 / min(theirs)
    return found
