"""Flover's Figure 9 at the paper's scale."""

from __future__ import annotations

from reproduce.figures import found


def test_fig_9_shows_what_the_shuffle_does() -> None:
    finding = found("flover-fig9", scale="paper", tokens=32)
    nine_a, nine_b = finding.panels
    for point in (*nine_a.points, *nine_b.points):
        assert point.measured["idle_tokens"] < point.measured["unshuffled_idle_tokens"]
        assert point.measured["num_moves"] > 0
        assert point.measured["moved_mib"] > 0
        assert point.measured["moving_ms"] is None
        assert point.measured["gain"] == point.measured["unshuffled_s"] / point.measured["fusion_s"]
    assert [point.at["lengths"] for point in nine_b.points] == ["8-16", "8-32", "8-64", "8-112"]
    assert [point.paper for point in nine_b.points] == [{"gain": None}] * 3 + [{"gain": 2.0}]
    assert all(point.measured["speedup"] > 1 for point in nine_a.points)
    assert "instances_s" not in nine_b.points[0].measured


def test_the_same_seed_draws_the_same_lengths() -> None:
    one, same, other = (found("flover-fig9", scale="paper", tokens=16, seed=seed).panels for seed in (3, 3, 4))
    assert one == same
    assert one != other
