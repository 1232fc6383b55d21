"""Loads of two contenders at equal latency, and the verdict on their ratio."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from minifuse.papers.curve import BOUND, Curve
from minifuse.papers.page import shown
from minifuse.papers.verdict import Claim, verdict


class Gain(NamedTuple):
    """The loads of two contenders at one latency.

    Ours serves at least that much if `least`: it was offered no more.
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
    """Compare loads at twice the baseline's lowest latency; None if ours always exceeds it."""
    level_s = BOUND * baseline.lowest(latency)
    here, there = (curve.load_at(level_s, load, latency) for curve in (ours, baseline))
    return None if here is None or there is None else Gain(level_s, here, there, ours.last[latency] <= level_s)


def gains(ours: Curve, baseline: Curve, load: str = "offered", latency: str = "p90") -> list[Gain | None]:
    """Compare the loads of each round."""
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
    """Judge by how much our load exceeds the baseline's, in every round.

    Where ours was never saturated its load is a lower bound, which decides only if it exceeds the claim.
    """
    found, whole = gains(ours, baseline, load, latency), gain(ours, baseline, load, latency)
    factors = [0.0 if one is None else one.factor for one in found]  # of a round in which ours always exceeds the level
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
