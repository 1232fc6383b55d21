"""Compares the loads of two contenders at equal latency, and judges their ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from minifuse.papers.curve import BOUND, Curve
from minifuse.papers.experiment import Mark
from minifuse.papers.numbers import shown
from minifuse.papers.verdict import Claim, verdict


class Gain(NamedTuple):
    """The loads of two contenders at one latency.

    `here` is our load, `there` is the baseline's. A load is `open` if the latency never got that high: the contender
    might serve even more, but no higher load was offered.

    >>> print(Gain(0.2, 19.0, 10.0, here_open=True), Gain(0.2, 9.0, 10.0, there_open=True), sep=", ")
    at least 1.90x, at most 0.90x
    """

    level_s: float
    here: float
    there: float
    here_open: bool = False
    there_open: bool = False

    @property
    def least(self) -> float:
        """The lower bound of our load over the baseline's."""
        return 0.0 if self.there_open else self.here / self.there

    @property
    def most(self) -> float:
        """The upper bound of our load over the baseline's."""
        return math.inf if self.here_open else self.here / self.there

    def __str__(self) -> str:
        if self.here_open and self.there_open:
            return "not known, as neither latency gets that high"
        bound = "at least " if self.here_open else "at most " if self.there_open else ""
        return f"{bound}{self.here / self.there:.2f}x"


def gain(ours: Curve, baseline: Curve, load: str = "offered", latency: str = "p90") -> Gain | None:
    """Compare loads at twice the baseline's lowest latency; None if our latency is always higher."""
    level_s = BOUND * baseline.lowest(latency)
    here, there = (curve.load_at(level_s, load, latency) for curve in (ours, baseline))
    if here is None or there is None:
        return None
    return Gain(level_s, here, there, *(curve.last[latency] < level_s for curve in (ours, baseline)))


def gains(ours: Curve, baseline: Curve, load: str = "offered", latency: str = "p90") -> list[Gain | None]:
    """Compare the loads of each round, as `gain` does."""
    rounds = range(len(ours.last.rounds))
    return [gain(ours.of_round(number), baseline.of_round(number), load, latency) for number in rounds]


def marks(baseline: Curve, times: Sequence[float], label: str, load: str, latency: str) -> list[Mark]:
    """Place a paper's gains in a picture, as multiples of the baseline's load.

    They lie at the latency where loads are compared, in ms. If the baseline never gets there, they have no place.
    """
    own = gain(baseline, baseline, load, latency)
    if own is None or own.there_open:
        return []
    return [Mark(one * own.there, 1e3 * own.level_s, label) for one in times]


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

    Where a latency stayed below the level, the ratio is only a bound, and is judged as such. If our latency always
    exceeds the level, the ratio is 0.
    """
    found, whole = gains(ours, baseline, load, latency), gain(ours, baseline, load, latency)
    least = [0.0 if one is None else one.least for one in found]
    most = [0.0 if one is None else one.most for one in found]
    each = ["never that low" if one is None else str(one) for one in found]
    text = each[0]
    if len(found) > 1:
        text = f"in every round {text}" if len(set(each)) == 1 else f"by round {', '.join(each)}"
        if least == most:
            text = f"{median(least):.2f}x ({text})"
    if whole is not None:
        text += f", {shown(whole.here)} against {shown(whole.there)} requests/s at {whole.level_s * 1e3:.3g} ms a token"
    text += f"; peaks {shown(ours.peak)} and {shown(baseline.peak)}"
    return verdict(what, least, claim, text, source, most)
