"""Compares contenders by their curves of normalized latency against throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minifuse.papers.curve import BOUND, OFFERED, Curve, Outcome, curve_panel
from minifuse.papers.equal_latency import equal_latency, marks
from minifuse.papers.experiment import RANGE, Column, Mark, Panel, Values
from minifuse.papers.verdict import LOWER, MORE, Claim, by_rate

NOMINAL = Column("nominal\nreq/s", "at", "rate")
COLUMNS = (("req/s", "throughput", None), ("p90 ms", "p90_ms", None), ("range", "p90_ms", RANGE))
BY_ROUND = ("offered", "hits", "recomputed", "recomputing")  # values that a point has of each round


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a load sweep: a curve for each contender.

    The load of a run is what was offered in the measured period, which is the same for all contenders. What ends in so
    short a period also depends on what waited when it began. In the long run both are equal, up to the load that a
    contender can serve; beyond it, latencies are high. The load of a `cold` run, in which nothing waits when it begins,
    is its throughput, as in the thesis.

    `paired` is true in real time: a run is then so short that its load depends on which conversations it has. So
    contenders are compared run by run, on the same requests.
    """

    title: str
    capacity: float  # requests per second of vllm when all requests arrive at once
    curves: Mapping[str, Curve]
    paired: bool = False
    cold: bool = False
    beside: Sequence[Curve] = ()  # curves of other sweeps, with which these are compared

    def ends(self, curve: Curve) -> bool:
        """Whether a higher rate would tell nothing more.

        Throughput has stopped growing, or p90 exceeds, in every round, each latency at which contenders are compared.
        """
        if not curve.points:
            return False
        lowest = [
            other.of_round(number).lowest()
            for other in (*self.curves.values(), *self.beside)
            for number in range(len(curve.last.rounds) if other.points else 0)
        ]
        return curve.saturated or min(curve.last.each("p90")) > BOUND * max(lowest)

    def loads(self, rate: float) -> list[float]:
        """Return the load that was offered to each contender at a nominal rate."""
        return [curve.points[rate]["offered"] for curve in self.curves.values() if rate in curve.points]

    @property
    def alike(self) -> bool:
        """Whether a rate offered all contenders the same load; never in real time."""
        rates = {rate for curve in self.curves.values() for rate in curve.points}
        return not self.paired and all(len(set(self.loads(rate))) == 1 for rate in rates)

    def load(self, rate: float) -> float:
        """Return the load that names a rate's row: offered if `alike`, otherwise nominal."""
        return self.loads(rate)[0] if self.alike else rate

    def panel(self, more: Sequence[Column] = (), marks: Sequence[Mark] = ()) -> Panel:
        """Return a panel with a row for each rate, named by `load`."""
        return curve_panel(
            self.title,
            self.curves,
            lambda rate: {"rate": rate, "share": rate / self.capacity, "offered": self.loads(rate)[0]},
            COLUMNS,
            first=Column(OFFERED.head, "at", "offered") if self.alike else NOMINAL,
            more=more,
            values=_values,
            marks=marks,
        )

    def marks(self, gain: float, where: str = "") -> list[Mark]:
        """Place the thesis' gain over vllm in the picture, except in real time.

        Args:
            where: ends the label.
        """
        if self.paired:
            return []
        return marks(self.curves["vllm"], [gain], f"thesis: {gain:g} times vllm{where}", "throughput", "p90")

    def verdict(self, ours: str, baseline: str, claim: Claim = MORE, source: str = "thesis") -> str:
        """Judge a contender against another: run by run if `paired`, otherwise at equal latency."""
        if self.paired:
            return self.lower_latency(ours, baseline)
        one, other = self.curves[ours], self.curves[baseline]
        return gain_at_equal_latency(self.title, one, other, claim, "throughput" if self.cold else "offered", source)

    def lower_latency(self, ours: str, baseline: str) -> str:
        """Judge the ratio of a contender's p90 to another's, in every round, at every rate."""
        one, other = self.curves[ours], self.curves[baseline]
        found = {
            self.load(rate): [mine / theirs for mine, theirs in outcome.beside(other.points[rate], "p90")]
            for rate, outcome in one.points.items()
            if rate in other.points
        }
        heads = f"p90 of {one.contender.head} over that of {other.contender.head}"
        return by_rate(f"{self.title}, {heads} with the same requests", found, LOWER)


def _values(outcome: Outcome, key: str) -> Values:
    """Return the medians, and the values of each round."""
    return {**outcome.values(key), **{f"{key}_{name}_rounds": outcome.each(name) for name in BY_ROUND}}


def gain_at_equal_latency(
    title: str, ours: Curve, baseline: Curve, claim: Claim = MORE, load: str = "offered", source: str = "thesis"
) -> str:
    """Judge the ratio of our load to the baseline's at equal latency."""
    what = f"{title}, requests/s of {ours.contender.head} over {baseline.contender.head} at equal p90"
    return equal_latency(what, ours, baseline, claim, load, source=source)
