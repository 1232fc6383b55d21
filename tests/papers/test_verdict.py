"""Verdicts: aims and gains are judged by their numbers."""

from __future__ import annotations

import pytest
from papers.figures import curve
from papers.figures import run as values

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import cut_aim, cuts, gain_aim
from minifuse.papers.experiment import Point
from minifuse.papers.page import shown
from minifuse.papers.verdict import against_paper, aim


def test_moderate_load_is_below_half_of_the_best_baselines_peak() -> None:
    ours = curve(400.0, {rate: values(rate, 0.01) for rate in (40.0, 90.0, 110.0, 300.0)})
    weak = curve(100.0, {40.0: values(40.0, 0.02), 90.0: values(90.0, 0.10)})
    strong = curve(200.0, {40.0: values(40.0, 0.05), 90.0: values(90.0, 0.04), 110.0: values(110.0, 0.05)})
    assert cuts(ours, weak, strong) == pytest.approx({40.0: 0.5, 90.0: 0.75})  # against the lower of both
    assert cuts(ours, weak) == pytest.approx({40.0: 0.5})


def test_aims_are_judged_by_their_numbers() -> None:
    ours = curve(126.0, {10.0: values(10.0, 0.02)})
    theirs = curve(100.0, {10.0: values(10.0, 0.04)}, "padded")
    assert gain_aim("LSTM,", ours, theirs, 0.25) == (
        "Aim, LSTM, peak throughput: met: +26.0%, 126 against 100 requests/s of padded (thesis: +25.0%)."
    )
    assert "not met: +26.0%" in gain_aim("LSTM,", ours, theirs, 0.27)
    met = "Aim, LSTM, 90th percentile at moderate load: met: -50.0% at 10 requests/s (thesis: -37.5% to -90.5%)."
    assert cut_aim("LSTM,", ours, [theirs], paper.CUTS_7) == met
    assert ": not met: -50.0%" in cut_aim("", ours, [theirs], 0.87)
    assert ": cannot be judged: no rate lies below 50%" in cut_aim(
        "", ours, [curve(15.0, {10.0: values(10.0, 0.04)}, "padded")], 0.28
    )
    assert aim("a", "b", "c", None) == "Aim, a: cannot be judged: b (thesis: c)."
    assert [shown(rate) for rate in (0.1234, 999.0, 12345.6)] == ["0.123", "999", "12,346"]


def test_what_falls_short_of_the_paper_is_named() -> None:
    def point(at: int, here: float | None, published: float | None) -> Point:
        return Point({"ms": at}, {"speedup": here, "limit": 3.0}, {"speedup": published})

    points = [point(1, 1.0, 2.0), point(2, 1.9, 2.0), point(3, 4.0, 2.0), point(4, None, 9.0), point(5, 1.0, None)]
    text = against_paper(points, "speedup", lambda at: f"{at['ms']} ms")
    assert text == (
        "Below 90% of the paper's speed-up: 1 ms (1.00x; paper 2.0x, 3.00x if no request slowed another down). "
        "Farthest above the paper's: 3 ms (4.00x; paper 2.0x)."
    )
    assert against_paper(points[1:2], "speedup", str) == "No speed-up is below 90% of one that the paper gives."
