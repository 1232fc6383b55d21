"""Flover's figures at the paper's scale."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from types import ModuleType

import pytest
from papers.figures import found, quickly

import minifuse.papers.flover.paper as paper
from minifuse.model.text.presets import PRESETS
from minifuse.papers.flover import fig7, fig8, fig9, fig10
from minifuse.workload.laws import Uniform


def test_the_overlapped_portion_is_equation_1() -> None:
    assert fig7.overlapped_portion(2.9) == pytest.approx(1 / 3)
    assert fig7.overlapped_portion(5.8) == fig7.overlapped_portion(100) == 0
    for interval, published in paper.R_P_7.items():  # the paper's own are those of a request of 6 s, as the notes say
        assert (6 - interval / 1e3) / (6 + interval / 1e3) == pytest.approx(published, abs=5e-4)


def test_fig_7_has_the_papers_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig7.BATCHES, "paper", (1, 4))
    finding = found("flover-fig7", scale="paper", tokens=32)
    panel = finding.panels[0]
    assert [len(one.points) for one in finding.panels] == 3 * [3 * 2 * 3]
    speedup = {(p.at["interval_ms"], p.at["batch"], p.at["requests"]): p.measured["speedup"] for p in panel.points}
    for batch in (1, 4):
        for interval in (500, 2500):
            assert 1 < speedup[interval, batch, 2] < speedup[interval, batch, 4] < speedup[interval, batch, 8]
        assert speedup[500, batch, 8] > speedup[2500, batch, 8] > speedup[5000, batch, 8]
        assert speedup[5000, batch, 2] == pytest.approx(1, abs=0.2)
    for point in panel.points:
        assert point.measured["speedup"] <= point.measured["speedup_limit"] * 1.0001
        assert point.measured["speedup"] == pytest.approx(point.measured["instances_s"] / point.measured["fusion_s"])
    published = {p.at["requests"]: p.paper["speedup"] for p in panel.points if p.at["interval_ms"] == 500}
    assert published == {2: 1.7, 4: None, 8: 3.4}


def test_fig_8_has_the_papers_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (20, 400))
    monkeypatch.setitem(fig8.RACED, "paper", (20,))
    finding = found("flover-fig8", scale="paper", model=f"random:{paper.MODEL}")
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
    bounds = next(note for note in finding.notes if "at most so many times as fast" in note)
    assert bounds.split("above: ")[1].startswith("24.3 times (one number calibrated); 12.1 times (fitted to Fig. 8);")
    assert sum("Overlap: " in note for note in finding.notes) == 3


def test_llamas_claim_is_compared_at_the_shortest_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fig8.INTERVALS, "paper", (5000,))
    panels = found("flover-fig8", scale="paper", tokens=16).panels
    for panel in panels[3:]:
        assert panel.title.startswith("LLaMA-7B")
        assert [(point.at["interval_ms"], point.paper) for point in panel.points] == [(5000, {"speedup": 16.0})]


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
        assert 1 < point.measured["row_bound"] < point.measured["kv_bound"]
    assert [point.at["lengths"] for point in nine_b.points] == ["8-16", "8-32", "8-64", "8-112"]
    assert [point.at["paper_lengths"] for point in nine_b.points] == [
        *(f"128-{longest}, ours" for longest in (256, 512, 1024)),
        "128-1792",
    ]
    unknown, published = ({"gain": gain, "masked_gain": gain} for gain in (None, 2.0))
    assert [point.paper for point in nine_b.points] == [unknown] * 3 + [published]
    assert all(point.measured["speedup"] > 1 for point in nine_a.points)
    assert "instances_s" not in nine_b.points[0].measured


def test_the_same_seed_draws_the_same_lengths() -> None:
    one, same, other = (found("flover-fig9", scale="paper", tokens=8, seed=seed).panels for seed in (3, 3, 4))
    assert one == same
    assert one != other


FEW = {
    fig7: ("BATCHES", "INTERVALS", "REQUESTS"),
    fig8: ("INTERVALS",),
    fig9: ("LONGEST_A", "LONGEST_B"),
    fig10: ("POINTS",),
}


@pytest.mark.parametrize("figure", FEW, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_papers_numbers_are_not_shown_beside_another_model(
    monkeypatch: pytest.MonkeyPatch, figure: ModuleType
) -> None:
    for axis in FEW[figure]:
        monkeypatch.setitem(getattr(figure, axis), "paper", getattr(figure, axis)["paper"][-1:])
    if figure is fig8:
        monkeypatch.setitem(fig8.RACED, "paper", fig8.INTERVALS["paper"])
    name = f"flover-{figure.__name__.rpartition('.')[2]}"
    own, other = (
        found(name, scale="paper", tokens=8, model=model) for model in (f"random:{paper.MODEL}", "random:opt-6.7b")
    )
    assert any(value is not None for panel in own.panels for point in panel.points for value in point.paper.values())
    assert all(value is None for panel in other.panels for point in panel.points for value in point.paper.values())
    verdicts = [note for note in other.notes if "Not compared: the paper has no" in note]
    assert len(verdicts) >= len(other.panels)
    assert not any("agree with the paper's" in note for note in other.notes)


def test_fig_10_has_nine_gains_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [point.gain for point in paper.GAINS_10] == [1.51, 1.64, 1.46, 1.60, 1.67, 2.34, 2.97, 3.13, 3.30]
    monkeypatch.setitem(fig10.POINTS, "paper", (paper.GAINS_10[1], paper.GAINS_10[4], paper.GAINS_10[8]))
    finding = found("flover-fig10", scale="paper", tokens=32, rounds=2)
    calibrated, fitted, by_context = finding.panels
    assert [point.at["name"] for point in fitted.points] == [
        "TP2 L3600 16R inter",
        "TP2 L1000 48R intra",
        "TP4 L7200 16R inter",
    ]
    assert [point.at["lengths"] for point in fitted.points] == ["8-225", "8-62", "8-450"]
    for point, slow in zip(calibrated.points, fitted.points, strict=True):
        assert point.paper == {"gain": point.at["gain"], "masked_gain": point.at["gain"]}
        assert point.measured["messages"] == 2 * PRESETS[paper.MODEL].num_layers + 1
        assert point.measured["kib"] < point.measured["unshuffled_kib"]
        # In a round both have the same requests: their bytes differ by the idle rows, but for the logits.
        rounds = zip(point.measured["fewer_bytes_rounds"], point.measured["row_bound_rounds"], strict=True)
        assert all(0.85 * bound < fewer < bound for fewer, bound in rounds)
        assert 1 < point.measured["gain"] < slow.measured["gain"]  # a row costs more
        assert slow.measured["gain"] < slow.measured["masked_gain"] < slow.measured["kv_bound"]
    assert [point.at["name"] for point in by_context.points] == [point.at["name"] for point in fitted.points]
    assert any("lies above both in every draw at TP4 L7200 16R inter" in note for note in finding.notes)


def test_fig_10_counts_what_two_processes_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrive at once: l_i rows of request i with shuffle, as many as the longest without; and a token of each."""
    quickly(monkeypatch)
    ((point,),) = (panel.points for panel in found("flover-fig10", scale="quick", tokens=8, dtype="float32").panels)
    law, rng = Uniform(2, 15), Random("flover lengths 0")
    lengths = [law.draw(rng) for _ in range(16)]
    config = PRESETS["small"]
    row, logits = 2 * config.num_layers * config.hidden_size * 4, sum(lengths) * config.vocab_size // 2 * 4
    assert point.measured["kib"] * 1024 * max(lengths) == pytest.approx(sum(lengths) * row + logits)
    assert point.measured["unshuffled_kib"] * 1024 * max(lengths) == pytest.approx(16 * max(lengths) * row + logits)
    assert point.measured["messages"] == 2 * config.num_layers + 1
    assert point.paper == {"gain": None, "masked_gain": None}
