"""Verdicts: too little and too much are told apart."""

from __future__ import annotations

import pytest
from papers.figures import curve, outcome
from papers.figures import run as values

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import cuts, higher_peak, lower_p90
from minifuse.papers.curve import Contender, Curve
from minifuse.papers.experiment import Point
from minifuse.papers.numbers import shown
from minifuse.papers.verdict import Claim, against_paper


def test_moderate_load_is_below_half_of_the_best_baselines_peak() -> None:
    ours = curve(400.0, {rate: values(rate, 0.01) for rate in (40.0, 90.0, 110.0, 300.0)})
    weak = curve(300.0, {40.0: values(40.0, 0.02), 90.0: values(90.0, 0.10), 300.0: values(100.0, 9.0)})
    strong = curve(300.0, {40.0: values(40.0, 0.05), 90.0: values(90.0, 0.04), 300.0: values(200.0, 9.0)})
    assert cuts(ours, weak, strong) == {40.0: pytest.approx([0.5]), 90.0: pytest.approx([0.75])}  # the lower of both
    assert cuts(ours, weak) == {40.0: pytest.approx([0.5])}


def test_peaks_and_latencies_are_judged_by_their_numbers() -> None:
    ours = curve(0.0, {10.0: values(10.0, 0.02), 200.0: values(126.0, 1.0)})
    theirs = curve(900.0, {10.0: values(10.0, 0.04), 200.0: values(100.0, 2.0)}, "padded")  # 900 is of no arrivals
    assert higher_peak("LSTM,", ours, theirs, Claim.about(1.25)) == (
        "LSTM, peak throughput: agrees: 1.26x, 126 against 100 requests/s of padded (thesis: 1.25x, within 10%)."
    )
    assert ": above: 1.26x" in higher_peak("", ours, theirs, Claim.about(1.1))
    assert lower_p90("LSTM,", ours, [theirs], paper.CUTS_7) == (
        "LSTM, how much lower p90 is at moderate load, by requests/s: agrees at 10, 50.0% (thesis: 37.5% to 90.5%)."
    )
    assert ": below at 10, 50.0%" in lower_p90("", ours, [theirs], Claim.near(0.87))
    loaded = curve(15.0, {10.0: values(10.0, 0.04)}, "padded")
    assert ": undecided, as no rate tells (thesis" in lower_p90("", ours, [loaded], Claim.near(0.28))
    assert [shown(rate) for rate in (0.1234, 999.0, 12345.6)] == ["0.123", "999", "12,346"]


def test_a_peak_of_each_round_counts() -> None:
    one = Curve(Contender("x", "x", "cellular"), 1, 5.0, {1.0: outcome(values(4.0), values(9.0))}, (6.0, 4.0))
    assert (one.peaks, one.peak) == ((4.0, 9.0), 6.5)
    assert one.of_round(1).points[1.0].rounds == (values(9.0),)


def test_points_that_agree_are_counted_and_the_others_named() -> None:
    def point(at: int, here: float | None, published: float | None, *rounds: float) -> Point:
        measured = {"speedup": here, "speedup_limit": 3.0, **({"speedup_rounds": rounds} if rounds else {})}
        return Point({"ms": at}, measured, {"speedup": published})

    points = [
        point(1, 1.0, 2.0),
        point(2, 1.9, 2.0),
        point(3, 4.0, 2.0),
        point(4, None, 9.0),
        point(5, 1.0, None),
        point(6, 2.0, 2.0, 1.5, 2.0, 2.1),
    ]
    assert against_paper(points, "speedup", lambda at: f"{at['ms']} ms") == (
        "Speed-up: 1 of 4 points agree with the paper's, within 10%. "
        "Below: 1 ms (1.00x; paper 2.00x, 3.00x if no request slowed another down). "
        "Above: 3 ms (4.00x; paper 2.00x). Undecided: 6 ms (2.00x (1.50x to 2.10x); paper 2.00x)."
    )
