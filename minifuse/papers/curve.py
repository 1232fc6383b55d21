"""Offers growing loads to contenders, and collects the outcomes as curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from minifuse.execute.timing import take_turns
from minifuse.papers.experiment import RANGE, SHARE, Column, Conditions, Mark, Panel, Point, Values
from minifuse.papers.numbers import shown
from minifuse.techniques import Technique, mix, technique

ALIKE = 0.02  # throughputs that differ by a smaller part count as equal
BOUND = 2.0  # loads are compared at this many times the baseline's lowest latency
PERCENTILES = (50, 90, 99)
DRAWN = ("p90_ms", "p99_ms")  # latencies that pictures show
ENOUGH = 8  # completions that tell a rate
OFFERED = Column("offered\nreq/s", "at", "rate")

Served = Mapping[str, float]  # the outcome of one run: seconds, requests per second, shares


@dataclass(frozen=True, slots=True)
class Contender:
    """A technique and its options; the limit of the batch size may be chosen later."""

    key: str  # begins the names of its values in a point
    head: str  # begins the heads of its columns
    technique: str
    options: Mapping[str, Any] = field(default_factory=dict)
    twice: str | None = None  # a type of cell whose batch-size limit is twice that of the other types
    stages: Mapping[str, str] = field(default_factory=dict)  # stages that replace the technique's own

    @property
    def row(self) -> Technique:
        return mix(technique(self.technique), **self.stages)

    def sized(self, max_batch: int) -> dict[str, Any]:
        """Return the contender's options with this batch-size limit."""
        options = {**self.options, "batching.max_batch": max_batch}
        return options if self.twice is None else {**options, "batching.max_batches": f"{self.twice}={2 * max_batch}"}


def latencies(whole: str, of: Callable[[str, int], float]) -> dict[str, float]:
    """Return percentiles of a latency and of its two parts, queueing and computing.

    Args:
        whole: the name of the latency among the metrics.
        of: returns the seconds, given the name of a latency and the percentile.
    """
    names = {"": whole, "queueing_": "queueing_s", "computing_": "computing_s"}
    return {f"{prefix}p{percent}": of(name, percent) for prefix, name in names.items() for percent in PERCENTILES}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a contender's rounds at one rate; indexing gives medians."""

    rounds: tuple[Served, ...]

    def __getitem__(self, name: str) -> float:
        return median(run[name] for run in self.rounds)

    def each(self, name: str) -> tuple[float, ...]:
        """Return a value in every round."""
        return tuple(run[name] for run in self.rounds)

    def beside(self, other: Outcome, name: str) -> list[tuple[float, float]]:
        """Return a value and that of another outcome, in every round."""
        return list(zip(self.each(name), other.each(name), strict=True))

    def values(self, key: str) -> Values:
        """Return the values of a point, named after the contender's key; percentiles are in ms."""
        values: Values = {}
        for name in self.rounds[0]:
            values |= {f"{key}_{name}_ms": self[name] * 1e3} if name[-2:].isdigit() else {f"{key}_{name}": self[name]}
        if len(self.rounds) > 1 and "p90" in self.rounds[0]:
            values[f"{key}_p90_ms_rounds"] = tuple(seconds * 1e3 for seconds in self.each("p90"))
            values[f"{key}_throughput_rounds"] = self.each("throughput")
        return values


@dataclass(slots=True)
class Curve:
    """A contender under load: its capacity, and its outcome at each rate (ascending).

    The capacity is its throughput when all requests arrive at once.
    """

    contender: Contender
    max_batch: int = 0
    capacity: float = 0.0  # requests per second
    points: dict[float, Outcome] = field(default_factory=dict)  # by the rate offered
    capacities: tuple[float, ...] = ()  # the capacity in each round

    @property
    def peak(self) -> float:
        """The median peak of the rounds."""
        return median(self.peaks)

    @property
    def peaks(self) -> tuple[float, ...]:
        """The highest throughput at any rate, in each round; without rates, the capacity."""
        rounds = [outcome.each("throughput") for outcome in self.points.values()]
        return tuple(map(max, zip(*rounds, strict=True))) if rounds else self.capacities

    def over(self, other: Curve) -> list[float]:
        """Divide the peak by another curve's, in each round."""
        return [ours / theirs for ours, theirs in zip(self.peaks, other.peaks, strict=True)]

    def of_round(self, number: int) -> Curve:
        """Return the curve of one round, without its capacity."""
        points = {rate: Outcome(one.rounds[number : number + 1]) for rate, one in self.points.items()}
        return Curve(self.contender, self.max_batch, points=points)

    @property
    def last(self) -> Outcome:
        return self.points[max(self.points)]

    def lowest(self, latency: str = "p90") -> float:
        """Return the lowest value of a latency at any rate, in seconds."""
        return min(outcome[latency] for outcome in self.points.values())

    @property
    def saturated(self) -> bool:
        """Whether the last rate exceeds the capacity and throughput has stopped growing."""
        if len(self.points) < 2:
            return False
        *before, last = (outcome["throughput"] for outcome in self.points.values())
        return max(self.points) > self.capacity and last <= (1 + ALIKE) * max(before)

    def load_at(self, level_s: float, load: str = "throughput", latency: str = "p90") -> float | None:
        """Return the load at which a latency reaches `level_s`; see `crossing`.

        Args:
            load: the name of a value of the outcomes, or `rate`.
        """
        points = [
            (outcome[latency], rate if load == "rate" else outcome[load]) for rate, outcome in self.points.items()
        ]
        return crossing(points, level_s)


def crossing(points: Sequence[tuple[float, float]], level_s: float) -> float | None:
    """Return the load at which a latency reaches a level; None if always higher.

    Neighbouring points are joined by straight lines, and the last crossing counts. If the last latency is below the
    level, the result is the last load.

    Args:
        points: pairs of latency and load, in ascending order of load.

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


def steady_rate(ended_s: Iterable[float]) -> float | None:
    """Return requests per second of the middle half of the completions.

    It is None if these end at once. The run's beginning, when batches fill up, and its end, when they run empty, do not
    count.

    >>> steady_rate([1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 6.0, 9.0])  # four requests end after 2.0 s and until 4.0 s
    2.0
    """
    ascending = sorted(ended_s)
    quarter = len(ascending) // 4
    begin_s, end_s = ascending[max(quarter - 1, 0)], ascending[-quarter - 1]
    ended = sum(begin_s < one_s <= end_s for one_s in ascending)
    return ended / (end_s - begin_s) if ended else None


def rate_while(last_s: float, ended_s: Sequence[float]) -> float | None:
    """Return the completions per second while requests arrive, without the first quarter of this time.

    At first batches fill up. After the last arrival, some buckets are empty, and batches no longer have the lengths of
    the workload. The time runs from the first completion in this window to the last one, because batches end at once.

    Returns:
        None if fewer than eight requests end after the first, as when all arrive at once.

    >>> rate_while(4.0, [0.5, *[2.0] * 4, *[3.0] * 5, *[4.0] * 3, *[5.0] * 20])  # eight end after 2 s and until 4 s
    4.0
    """
    window = [end_s for end_s in ended_s if last_s / 4 < end_s <= last_s]
    begin_s, until_s = min(window, default=0.0), max(window, default=0.0)
    ended = sum(end_s > begin_s for end_s in window)
    return ended / (until_s - begin_s) if ended >= ENOUGH else None


def load_at(
    curves: Mapping[str, Curve],
    rates: Sequence[float],
    run: Callable[[Curve, float, int], Served],
    rounds: int,
    say: Callable[[str], None],
    measured: Callable[[float], None] = lambda rate: None,
    *,
    ended: Callable[[Curve], bool] = lambda curve: curve.saturated,
) -> None:
    """Offer each rate to every contender whose curve has not ended.

    The outcomes are added to the curves.

    Args:
        rates: the rates in ascending order.
        run: runs one contender at a rate, in the round of a given number, and returns the outcome.
        measured: called after each rate.
        ended: whether a curve needs no higher rate; by default, if it is saturated.
    """
    for number, rate in enumerate(rates):
        runs = {name: partial(run, curve, rate) for name, curve in curves.items() if not ended(curve)}
        if not runs:
            return
        say(f"{shown(rate)} requests/s")
        for name, outcome in run_rounds(runs, rounds, number).items():
            curves[name].points[rate] = outcome
        measured(rate)


def never(curve: Curve) -> bool:
    """Let a curve go on, so that every contender is offered every rate."""
    return False


def run_rounds(runs: Mapping[str, Callable[[int], Served]], rounds: int, first: int) -> dict[str, Outcome]:
    return {name: Outcome(tuple(found)) for name, found in take_turns(runs, rounds, first).items()}


def offered(rates: Sequence[float], peak: float) -> tuple[float, ...]:
    """Return requests per second; if no rate exceeds `SHARE`, `rates` are shares of `peak`.

    >>> offered((0.5, 1.2), 300.0)
    (150.0, 360.0)
    """
    return tuple(rate * peak for rate in rates) if max(rates) <= SHARE else tuple(rates)


def rates_of(conditions: Conditions, shares: Sequence[float], capacity: float) -> tuple[float, ...]:
    """Return the rates that the user asked for, otherwise `shares` of the capacity."""
    given = conditions.rates
    return offered(given, capacity) if given else tuple(share * capacity for share in shares)


def _drawn(key: str, name: str, form: str | None) -> Column:
    """Return a contender's column; a latency is drawn over the contender's throughput."""
    column = Column("", "measured", f"{key}_{name}", form)
    if name not in DRAWN or form == RANGE:
        return column
    return replace(column, axis="y", log=True, over=f"{key}_throughput", over_head="requests/s")


def curve_panel(
    title: str,
    curves: Mapping[str, Curve],
    at: Callable[[float], Values],
    columns: Sequence[tuple[str, str, str | None]],
    *,
    first: Column = OFFERED,
    more: Sequence[Column] = (),
    values: Callable[[Outcome, str], Values] = Outcome.values,
    marks: Sequence[Mark] = (),
) -> Panel:
    """Return a panel: a row for each rate, columns for each contender.

    Args:
        at: returns the position of a rate's point.
        columns: head, name of the value and format of each column that a contender has.
        first: the column of the rates.
        more: columns behind those of the contenders.
        values: returns the values of an outcome, given the contender's key.
        marks: the paper's points in the picture.
    """
    points = []
    for rate in sorted({rate for curve in curves.values() for rate in curve.points}):
        measured: Values = {}
        for key, curve in curves.items():
            if rate in curve.points:
                measured |= values(curve.points[rate], key)
        points.append(Point(at(rate), measured, {}))
    own = [
        replace(_drawn(key, name, form), head=f"{curve.contender.head}\n{head}")
        for key, curve in curves.items()
        for head, name, form in columns
    ]
    return Panel(title, (first, *own, *more), tuple(points), marks=tuple(marks))
