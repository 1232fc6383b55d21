"""Flover's Figure 7 at the paper's scale."""

from __future__ import annotations

import pytest
from reproduce.figures import found

import minifuse.reproduce.flover.paper as paper
from minifuse.reproduce.flover import fig7


def test_the_overlapped_portion_is_equation_1() -> None:
    assert fig7.overlapped_portion(2.9) == pytest.approx(1 / 3)
    assert fig7.overlapped_portion(5.8) == fig7.overlapped_portion(100) == 0
    for interval, published in paper.R_P_7.items():  # the paper's own are those of a request of 6 s, as the notes say
        assert (6 - interval / 1e3) / (6 + interval / 1e3) == pytest.approx(published, abs=5e-4)


def test_fig_7_has_the_papers_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig7.BATCHES, "paper", (1, 4))
    finding = found("flover-fig7", scale="paper", tokens=32)
    (panel,) = finding.panels
    assert len(panel.points) == 3 * 2 * 3
    speedup = {(p.at["interval_ms"], p.at["batch"], p.at["requests"]): p.measured["speedup"] for p in panel.points}
    for batch in (1, 4):
        for interval in (500, 2500):
            assert 1 < speedup[interval, batch, 2] < speedup[interval, batch, 4] < speedup[interval, batch, 8]
        assert speedup[500, batch, 8] > speedup[2500, batch, 8] > speedup[5000, batch, 8]
        assert speedup[5000, batch, 2] == pytest.approx(1, abs=0.2)
    for point in panel.points:
        assert point.measured["speedup"] <= point.measured["limit"] * 1.0001
        assert point.measured["speedup"] == point.measured["instances_s"] / point.measured["fusion_s"]
    published = {p.at["requests"]: p.paper["speedup"] for p in panel.points if p.at["interval_ms"] == 500}
    assert published == {2: 1.7, 4: None, 8: 3.4}
