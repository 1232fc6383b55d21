"""Pensieve's Figure 3.17: what is shown, noted and refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers import sentence
from papers.figures import found

from minifuse.core.errors import MachineError, UsageError
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Conditions, Point, Say
from minifuse.papers.pensieve import fig3_17 as module
from minifuse.papers.pensieve.fig3_17 import Setting, order, slope, spread

NAME = "pensieve-fig3.17"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of few points, whose batch is as large as the paper's."""
    scale = module.SCALES["quick"]
    monkeypatch.setitem(module.SCALES, "quick", replace(scale, pasts=(8, 32), uneven=(16,), queries_at=16, rounds=2))


def test_uneven_lengths_have_the_mean_of_equal_ones() -> None:
    lengths = spread(1000, 32, 0)
    assert (len(lengths), sum(lengths)) == (32, 32000)
    assert 250 <= min(lengths) < 600
    assert 1400 < max(lengths) <= 1750
    assert spread(1000, 32, 1) != lengths


def test_the_exponent_of_a_power_law() -> None:
    assert slope([(x, 5 * x**2) for x in (1, 3, 10)]) == pytest.approx(2)
    assert slope([(128, 7.0), (256, -0.1), (512, 28.0)]) == pytest.approx(1)
    assert slope([(128, 7.0), (256, -0.1)]) is None


@pytest.mark.usefixtures("few")
def test_the_figure_gives_the_papers_order_beside_what_was_measured() -> None:
    row = EXPERIMENTS[NAME]
    progress: list[str] = []
    finding = row.prepare(Conditions(scale="quick", dtype="float32", tokens=6, rounds=3))(Say(progress.append))
    assert progress[:2] == ["8 past tokens", "32 past tokens"]
    equal, uneven, varied = finding.panels
    assert [point.at["past_tokens"] for point in equal.points] == [8, 32]
    assert [point.at["tokens"] for point in varied.points] == [3, 6, 12]
    assert uneven.points[0].at["shortest"] < 16 < uneven.points[0].at["longest"]
    for panel in (equal, uneven, varied):
        papers = panel is equal
        assert panel.title.startswith("Not in the paper") != papers
        assert any(column.part == "paper" for column in panel.columns) == papers
        for point in panel.points:
            assert point.paper == ({"ours": "<1", "copied": ">1", "rounds": ">1"} if papers else {})
            assert len(point.measured["ours_ms_rounds"]) == 3
            for name in point.paper:
                assert point.measured[name] == point.measured[f"{name}_ms"] / point.measured["ideal_ms"]
    as_json = json.loads(json.dumps(row.as_json(finding)))
    assert (as_json["model"], as_json["batch"], as_json["tokens"], as_json["rounds"]) == ("random:small", 32, 6, 3)
    assert (as_json["num_heads"], as_json["num_kv_heads"], as_json["head_dim"]) == (8, 4, 32)
    text = " ".join(finding.notes)
    assert "once an iteration" in text
    assert "gives no numbers" in text
    assert "medians of 3 rounds" in text


def test_the_order_is_judged_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def point(past: int, ours: tuple[float, ...], copied: tuple[float, ...]) -> Point:
        rounds = {"ours_rounds": ours, "copied_rounds": copied, "rounds_rounds": (8.0, 9.0)}
        return Point({"past_tokens": past}, rounds, {})

    ours, copied, rounds = order([point(128, (0.9, 0.95), (2.0, 3.0)), point(2048, (0.9, 1.5), (0.8, 0.9))])
    assert "agrees at 128, 0.93x (0.90x to 0.95x); undecided at 2,048" in ours
    assert "agrees at 128, 2.50x (2.00x to 3.00x); below at 2,048" in copied
    assert "agrees at 128" in rounds
    assert "agrees at 2,048" in rounds
    times = {"ours": 0.9, "copied": 2.0, "rounds": 8.0, "copied_ms": 1.0, "ideal_ms": 2.0, "rounds_ms": 8.0}
    by_round = {f"{name}_rounds": (times[name],) for name in ("ours", "copied", "rounds")}
    monkeypatch.setattr(Setting, "contest", lambda *arguments: {"fused": "f", **times, **by_round})
    notes = found(NAME, scale="quick").notes
    assert any("(too few points to tell)" in note and "power 0.00 (paper: linear, 1)" in note for note in notes)


def test_contexts_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda device: 10**9)
    with pytest.raises(UsageError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(model="random:opt-13b", dtype="bfloat16"))
    # 5 times 32 contexts of 4112 tokens, each of 2 x 40 heads of 128 in 2 bytes
    sentence(refused.value, f"{5 * 32 * 4112 * 2 * 40 * 128 * 2 / 1e9:.1f} GB", "1.0 GB are free on cpu", "--model")


def test_the_papers_scale_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(scale="paper"))
    sentence(refused.value, "--scale is paper", "no CUDA device", "--scale cpu or quick")


def test_with_a_gpu_kernels_and_the_papers_dtype_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(module, "free_bytes", lambda device: 80 * 10**9)
    facts = Setting(Conditions(scale="paper")).described()
    assert (facts["model"], facts["dtype"], facts["device"], facts["rounds"]) == (
        "random:opt-13b",
        "float16",
        "cuda",
        20,
    )
    assert Setting(Conditions(scale="quick")).device == "cuda"
    assert Setting(Conditions(scale="cpu")).device == "cpu"
    with pytest.raises(UsageError) as refused:
        Setting(Conditions(scale="quick", dtype="float64"))
    sentence(refused.value, "--dtype is float64", "bfloat16", "--scale cpu")


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    finding = found(NAME, scale="quick")
    assert finding.facts["device"] == "cuda"
    assert all(point.measured["ours_ms"] > 0 for panel in finding.panels for point in panel.points)
