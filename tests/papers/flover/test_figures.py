"""Flover's figures at the paper's scale."""

from __future__ import annotations

from itertools import pairwise

import pytest
from papers.figures import found

import minifuse.papers.flover.paper as paper
from minifuse.papers.flover import fig7, fig8


def test_the_overlapped_portion_is_equation_1() -> None:
    assert fig7.overlapped_portion(2.9) == pytest.approx(1 / 3)
    assert fig7.overlapped_portion(5.8) == fig7.overlapped_portion(100) == 0
    for interval, published in paper.R_P_7.items():  # the paper's own are those of a request of 6 s, as the notes say
        assert (6 - interval / 1e3) / (6 + interval / 1e3) == pytest.approx(published, abs=5e-4)


def test_fig_7_has_the_papers_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig7.BATCHES, "paper", (1, 4))
    finding = found("flover-fig7", scale="paper", tokens=32)
    panel, of_fitted = finding.panels
    assert len(panel.points) == len(of_fitted.points) == 3 * 2 * 3
    speedup = {(p.at["interval_ms"], p.at["batch"], p.at["requests"]): p.measured["speedup"] for p in panel.points}
    for batch in (1, 4):
        for interval in (500, 2500):
            assert 1 < speedup[interval, batch, 2] < speedup[interval, batch, 4] < speedup[interval, batch, 8]
        assert speedup[500, batch, 8] > speedup[2500, batch, 8] > speedup[5000, batch, 8]
        assert speedup[5000, batch, 2] == pytest.approx(1, abs=0.2)
    for point in panel.points:
        assert point.measured["speedup"] <= point.measured["limit"] * 1.0001
        assert point.measured["speedup"] == pytest.approx(point.measured["instances_s"] / point.measured["fusion_s"])
    published = {p.at["requests"]: p.paper["speedup"] for p in panel.points if p.at["interval_ms"] == 500}
    assert published == {2: 1.7, 4: None, 8: 3.4}


def test_fig_8_has_the_papers_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (20, 5000))
    monkeypatch.setitem(fig8.RACED, "paper", (20,))
    finding = found("flover-fig8", scale="paper")
    points = finding.panels[0].points
    dense = finding.panels[1].points[0].measured
    assert dense["speedup"] == pytest.approx(paper.SPEEDUP_8[20], rel=0.1)  # which the machine is not fitted to
    for early, late in pairwise(points):
        assert early.measured["iterations"] < late.measured["iterations"]
        assert early.measured["overlap"] > late.measured["overlap"]
    for point in points:
        # Every request runs in exactly as many iterations as it has tokens.
        assert point.measured["overlap"] * point.measured["iterations"] == pytest.approx(512)
        published = point.paper["iterations"]  # of another draw of the arrivals
        assert published is None or point.measured["iterations"] == pytest.approx(published, rel=0.2)
    assert points[0].measured["overlap"] == pytest.approx(0.913, abs=0.05)
    assert [point.measured.get("speedup") is not None for point in points] == [True, False]
    assert any("32 instances together make 1.00 times" in note for note in finding.notes)


def test_the_same_seed_finds_the_same_and_another_seed_other_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (5000,))
    totals = [
        found("flover-fig8", scale="paper", tokens=16, seed=seed).panels[0].points[0].measured for seed in (3, 3, 4)
    ]
    assert totals[0] == totals[1]
    assert totals[0]["fusion_s"] != totals[2]["fusion_s"]


def test_fig_9_shows_what_the_shuffle_does() -> None:
    finding = found("flover-fig9", scale="paper", tokens=32)
    nine_a, nine_b, *_ = finding.panels
    for point in (*nine_a.points, *nine_b.points):
        assert point.measured["idle_tokens"] < point.measured["unshuffled_idle_tokens"]
        assert point.measured["num_moves"] > 0
        assert point.measured["moved_mib"] > 0
        assert point.measured["moving_ms"] is None
        assert point.measured["gain"] == pytest.approx(point.measured["unshuffled_s"] / point.measured["fusion_s"])
    assert [point.at["lengths"] for point in nine_b.points] == ["8-16", "8-32", "8-64", "8-112"]
    assert [point.paper for point in nine_b.points] == [{"gain": None}] * 3 + [{"gain": 2.0}]
    assert all(point.measured["speedup"] > 1 for point in nine_a.points)
    assert "instances_s" not in nine_b.points[0].measured


def test_the_same_seed_draws_the_same_lengths() -> None:
    one, same, other = (found("flover-fig9", scale="paper", tokens=8, seed=seed).panels for seed in (3, 3, 4))
    assert one == same
    assert one != other
