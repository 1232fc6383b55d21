"""Flover's figures: the machine, the arrivals, the contenders, and the paper's shape at the paper's scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from helpers import sentence

import minifuse.reproduce.flover_paper as paper
from minifuse.errors import UsageError
from minifuse.reproduce import EXPERIMENTS, Conditions, Finding, Point, experiments, flover
from minifuse.reproduce.bench import Outcome
from minifuse.reproduce.flover_notes import judged, notes
from minifuse.reproduce.flover_setting import Setting, calibrated, half_precision
from minifuse.request import Request
from minifuse.simulate.cost import hardware


def found(name: str, **conditions: Any) -> Finding:
    return EXPERIMENTS[name].prepare(Conditions(**conditions))(lambda what: None)


def started(**conditions: Any) -> Setting:
    setting = Setting(Conditions(**{"scale": "paper", **conditions}), 16, [])
    setting.start(lambda what: None)
    return setting


def test_a_name_is_a_figure_or_a_paper() -> None:
    assert [row.name for row in experiments("flover")] == ["flover-fig7", "flover-fig8", "flover-fig9"]
    assert [row.figure for row in experiments("flover-fig8")] == ["Fig. 8"]
    with pytest.raises(UsageError) as error:
        experiments("flover-fig6")
    sentence(error.value, "'flover-fig6'", 'did you mean "flover-fig')


def test_the_calibrated_machine_takes_the_papers_time_alone() -> None:
    assert started(tokens=512).alone_s == pytest.approx(5.8, abs=1e-9)
    assert calibrated().bandwidth < hardware("a100-40g").bandwidth
    assert (calibrated().flops, calibrated().memory) == (hardware("a100-40g").flops, 40e9)


def test_intervals_are_the_papers_fractions_of_a_request_alone() -> None:
    setting = started(tokens=64)
    assert setting.seconds(5800) == pytest.approx(setting.alone_s)
    assert setting.seconds(500) == pytest.approx(setting.alone_s * 500 / 5800)
    assert [setting.length(paper_tokens) for paper_tokens in (128, 256, 1792)] == [16, 32, 224]


def test_the_overlapped_portion_is_equation_1() -> None:
    assert flover.overlapped_portion(2.9) == pytest.approx(1 / 3)
    assert flover.overlapped_portion(5.8) == flover.overlapped_portion(100) == 0
    for interval, told in paper.R_P_7.items():  # the paper's own are those of a request of 6 s, as the notes say
        assert (6 - interval / 1e3) / (6 + interval / 1e3) == pytest.approx(told, abs=5e-4)


def test_requests_are_the_same_for_everybody_and_ask_for_exact_lengths() -> None:
    setting = started(tokens=8)
    requests = setting.requests([0.0, 1.5], [3, 5], prompts=2)
    assert [(r.id, r.group, r.arrival_s, r.max_new_tokens) for r in requests] == [
        ("r0.0", "r0", 0.0, 3),
        ("r0.1", "r0", 0.0, 3),
        ("r1.0", "r1", 1.5, 5),
        ("r1.1", "r1", 1.5, 5),
    ]
    assert all(request.ignore_eos for request in requests)
    assert len({request.prompt for request in requests}) == 4
    assert setting.requests([0.0, 1.5], [3, 5], prompts=2) == requests
    assert {r.max_new_tokens for r in setting.requests([0.0])} == {8}
    assert started(tokens=8, seed=1).requests([0.0]) != setting.requests([0.0])


class Recorder:
    """A bench that only writes down what it is asked to serve."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, list[Request], int, Mapping[str, Any]]] = []

    def serve(self, name: str, requests: Sequence[Request], kv_tokens: int, options: Mapping[str, Any]) -> Outcome:
        self.asked.append((name, list(requests), kv_tokens, options))
        return self.outcome


def test_the_contenders_get_the_same_requests_and_all_the_room_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = started(tokens=8)
    requests = setting.requests([0.0, 1.0, 2.0], [8, 6, 4], prompts=2)
    recorder = Recorder(setting.fusion(requests))
    monkeypatch.setattr(setting, "bench", recorder)
    flover._race(setting, [0.0, 1.0, 2.0], [8, 6, 4], batch=2, unshuffled=True)
    (_, _, slots, fused), (_, _, _, unshuffled), (_, _, sums, alone) = recorder.asked
    assert [name for name, *_ in recorder.asked] == ["fusion", "fusion", "instances"]
    assert all(given == requests for _, given, *_ in recorder.asked)
    assert slots == 6 * (8 + 8)  # a slot for each prompt, as wide as the longest
    assert sums == 2 * (15 + 13 + 11)
    assert fused["memory.slots"] == unshuffled["memory.slots"] == 6
    assert (fused["memory.shuffle"], unshuffled["memory.shuffle"]) == (True, False)
    assert alone == {"batching.instances": 3}  # nobody waits for an instance


def test_fig_7_has_the_papers_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flover.BATCHES_7, "paper", (1, 4))
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
        assert point.measured["speedup"] <= point.measured["limit"] * 1.0001  # type: ignore[operator]
        assert point.measured["speedup"] == point.measured["instances_s"] / point.measured["fusion_s"]  # type: ignore[operator]
    told = {p.at["requests"]: p.paper["speedup"] for p in panel.points if p.at["interval_ms"] == 500}
    assert told == {2: 1.7, 4: None, 8: 3.4}


def test_fig_8_has_the_papers_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flover.INTERVALS_8, "paper", (20, 50, 400, 1000, 5000))
    monkeypatch.setitem(flover.RACED_8, "paper", (20,))
    finding = found("flover-fig8", scale="paper")
    points = finding.panels[0].points
    for early, late in pairwise(points):
        assert early.measured["iterations"] < late.measured["iterations"]  # type: ignore[operator]
        assert early.measured["overlap"] > late.measured["overlap"]  # type: ignore[operator]
    for point in points:
        # Every request runs in exactly as many iterations as it has tokens.
        assert point.measured["overlap"] * point.measured["iterations"] == pytest.approx(512)  # type: ignore[operator]
        told = point.paper["iterations"]
        assert told is None or point.measured["iterations"] == pytest.approx(told, rel=0.2)  # one draw against another
    assert points[0].measured["overlap"] == pytest.approx(0.913, abs=0.05)
    assert [point.measured.get("speedup") is not None for point in points] == [True, False, False, False, False]
    assert any("32 instances together make 1.00 times" in note for note in finding.notes)


def test_fig_9_tells_what_the_shuffle_does() -> None:
    finding = found("flover-fig9", scale="paper", tokens=32)
    nine_a, nine_b = finding.panels
    for point in (*nine_a.points, *nine_b.points):
        assert point.measured["idle_tokens"] < point.measured["unshuffled_idle_tokens"]  # type: ignore[operator]
        assert point.measured["num_moves"] > 0  # type: ignore[operator]
        assert point.measured["moved_mib"] > 0  # type: ignore[operator]
        assert point.measured["moving_ms"] is None
        assert point.measured["gain"] == point.measured["unshuffled_s"] / point.measured["fusion_s"]  # type: ignore[operator]
    assert [point.at["lengths"] for point in nine_b.points] == ["8-16", "8-32", "8-64", "8-112"]
    assert [point.paper for point in nine_b.points] == [{"gain": None}] * 3 + [{"gain": 2.0}]
    assert all(point.measured["speedup"] > 1 for point in nine_a.points)  # type: ignore[operator]
    assert "instances_s" not in nine_b.points[0].measured


def test_the_same_seed_finds_the_same_and_another_seed_other_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flover.INTERVALS_8, "paper", (5000,))
    totals = [
        found("flover-fig8", scale="paper", tokens=16, seed=seed).panels[0].points[0].measured for seed in (3, 3, 4)
    ]
    assert totals[0] == totals[1]
    assert totals[0]["fusion_s"] != totals[2]["fusion_s"]


def test_the_same_seed_draws_the_same_lengths() -> None:
    one, same, other = (found("flover-fig9", scale="paper", tokens=16, seed=seed).panels for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_the_notes_tell_what_was_scaled_and_what_a_batch_yields() -> None:
    setting = started(tokens=64)
    how, yields, share = notes(setting)
    assert "One number is calibrated: its memory bandwidth" in how
    assert yields.startswith("tokens/s of the fused stream at batch 1, 2, 4, 8, 16, 32: ")
    speeds = list(setting.throughput.values())
    assert speeds == sorted(speeds)
    assert f"{speeds[-1] / speeds[0]:.1f} times" in yields
    assert "evenly" in share


def test_throughput_is_that_of_whole_batches() -> None:
    speed = started(tokens=8).throughput
    assert speed[32] == pytest.approx(32 * speed[1], rel=0.05)  # short contexts: an iteration only reads the weights


def test_what_falls_short_of_the_paper_is_named() -> None:
    def point(at: int, here: float | None, told: float | None) -> Point:
        return Point({"ms": at}, {"speedup": here, "limit": 3.0}, {"speedup": told})

    points = [point(1, 1.0, 2.0), point(2, 1.9, 2.0), point(3, 4.0, 2.0), point(4, None, 9.0), point(5, 1.0, None)]
    text = judged(points, "speedup", lambda at: f"{at['ms']} ms")
    assert text == (
        "Below 90% of the paper's speed-up: 1 ms (1.00x; paper 2.0x, 3.00x if company slowed nobody down). "
        "Farthest above the paper's: 3 ms (4.00x; paper 2.0x)."
    )
    assert judged(points[1:2], "speedup", str) == "No speed-up is below 90% of one that the paper tells."


@pytest.mark.parametrize(
    ("name", "conditions", "words"),
    [
        ("flover-fig9", {"scale": "quick", "tokens": 600}, ["--tokens 600", "2100 tokens", "2040", "at most 582"]),
        ("flover-fig8", {"scale": "paper", "tokens": 2041}, ["--tokens 2041", "at most 2040"]),
        ("flover-fig8", {"scale": "paper", "model": "random:opt-66b"}, ["random:opt-66b", "40 GB", "smaller --model"]),
        ("flover-fig8", {"scale": "paper", "dtype": "float64"}, ["float64", "shorter --dtype"]),
        ("flover-fig7", {"scale": "quick", "model": "no such"}, ["'no such'"]),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(name: str, conditions: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        EXPERIMENTS[name].prepare(Conditions(**conditions))
    sentence(error.value, *words)


def test_the_dtype_is_half_precision_where_the_machine_is_fast_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda found=supported: found)
        assert half_precision() == dtype
        assert Setting(Conditions(scale="quick"), 16, []).settings.dtype == dtype
    monkeypatch.delattr("torch.cpu._is_amx_tile_supported")
    assert half_precision() == "float32"
    assert Setting(Conditions(scale="paper"), 16, []).settings.dtype == "float16"
