"""Flover's Figure 8 at the paper's scale."""

from __future__ import annotations

from itertools import pairwise

import pytest
from reproduce.figures import found

from minifuse.reproduce.flover import fig8


def test_fig_8_has_the_papers_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (20, 50, 400, 1000, 5000))
    monkeypatch.setitem(fig8.RACED, "paper", (20,))
    finding = found("flover-fig8", scale="paper")
    points = finding.panels[0].points
    for early, late in pairwise(points):
        assert early.measured["iterations"] < late.measured["iterations"]
        assert early.measured["overlap"] > late.measured["overlap"]
    for point in points:
        # Every request runs in exactly as many iterations as it has tokens.
        assert point.measured["overlap"] * point.measured["iterations"] == pytest.approx(512)
        published = point.paper["iterations"]  # of another draw of the arrivals
        assert published is None or point.measured["iterations"] == pytest.approx(published, rel=0.2)
    assert points[0].measured["overlap"] == pytest.approx(0.913, abs=0.05)
    assert [point.measured.get("speedup") is not None for point in points] == [True, False, False, False, False]
    assert any("32 instances together make 1.00 times" in note for note in finding.notes)


def test_the_same_seed_finds_the_same_and_another_seed_other_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (5000,))
    totals = [
        found("flover-fig8", scale="paper", tokens=16, seed=seed).panels[0].points[0].measured for seed in (3, 3, 4)
    ]
    assert totals[0] == totals[1]
    assert totals[0]["fusion_s"] != totals[2]["fusion_s"]
