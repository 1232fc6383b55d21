"""Compares the loads of two contenders at equal latency, and judges their ratio."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from minifuse.papers.curve import BOUND, Curve
from minifuse.papers.page import shown
from minifuse.papers.verdict import Claim, verdict


class Gain(NamedTuple):
    """The loads of two contenders at one latency.

    `here` is our load, `there` is the baseline's. If `least`, ours may serve even more: no higher load was offered.
    """

    level_s: float
    here: float
    there: float
    least: bool

    @property
    def factor(self) -> float:
        return self.here / self.there

    def __str__(self) -> str:
        return f"{'at least ' if self.least else ''}{self.factor:.2f}x"


def gain(ours: Curve, baseline: Curve, load: str = "offered", latency: str = "p90") -> Gain | None:
    """Compare loads at twice the baseline's lowest latency; None if our latency is always higher."""
    level_s = BOUND * baseline.lowest(latency)
    here, there = (curve.load_at(level_s, load, latency) for curve in (ours, baseline))
    return None if here is None or there is None else Gain(level_s, here, there, ours.last[latency] <= level_s)


def gains(ours: Curve, baseline: Curve, load: str = "offered", latency: str = "p90") -> list[Gain | None]:
    """Compare the loads of each round, as `gain` does."""
    rounds = range(len(ours.last.rounds))
    return [gain(ours.of_round(number), baseline.of_round(number), load, latency) for number in rounds]


def equal_latency(
    what: str,
    ours: Curve,
    baseline: Curve,
    claim: Claim,
    load: str = "offered",
    latency: str = "p90",
    source: str = "thesis",
) -> str:
    """Judge the ratio of our load to the baseline's at equal latency, in every round.

    If our latency stayed below the level in a round, our load there is only a lower bound. The verdict is then
    undecided, unless every round exceeds the claim.
    """
    found, whole = gains(ours, baseline, load, latency), gain(ours, baseline, load, latency)
    factors = [0.0 if one is None else one.factor for one in found]  # 0: our latency always exceeds the level
    if any(one is not None and one.least for one in found) and min(factors) <= claim.most:
        judged: list[float] = []
    else:
        judged = factors
    rounds = ", ".join("never that low" if one is None else str(one) for one in found)
    text = f"{median(factors):.2f}x (by round {rounds})" if len(found) > 1 else rounds
    if whole is not None:
        text += f", {shown(whole.here)} against {shown(whole.there)} requests/s at {whole.level_s * 1e3:.3g} ms a token"
    text += f"; peaks {shown(ours.peak)} and {shown(baseline.peak)}"
    return verdict(what, judged, claim, text, source)
