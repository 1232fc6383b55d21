"""Flover's machine, requests and contenders, what is refused, and the notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import minifuse.papers.flover.paper as paper
from minifuse.papers.contest import half_precision
from minifuse.papers.experiment import Conditions, Say
from minifuse.papers.flover.machine import by_context, calibrated, fitted
from minifuse.papers.flover.setting import Setting
from minifuse.simulate.cost import hardware


def started(*, drawn: bool = True, **conditions: Any) -> Setting:
    setting = Setting(Conditions(**{"scale": "paper", **conditions}), 16, [], drawn=drawn)
    setting.start(Say())
    return setting


def test_the_calibrated_machine_takes_the_papers_time_alone() -> None:
    assert started(tokens=512).alone_s == pytest.approx(5.8, abs=1e-9)
    assert calibrated().bandwidth < hardware("a100-40g").bandwidth
    assert (calibrated().flops, calibrated().memory) == (hardware("a100-40g").flops, 40e9)


def test_the_named_machine_is_the_fit() -> None:
    named, found = hardware(paper.FITTED), fitted()
    assert [named.bandwidth, named.row_s, named.together] == pytest.approx(
        [found.bandwidth, found.row_s, found.together], rel=5e-4
    )
    of_sheet = hardware(paper.MACHINE)
    assert replace(named, bandwidth=of_sheet.bandwidth, row_s=0.0, together=1.0) == of_sheet


@pytest.mark.parametrize("machine", [paper.FITTED, by_context()], ids=["fitted", "by context"])
def test_the_fitted_machines_take_the_papers_time_alone_and_its_fig_8(machine: Any) -> None:
    """1 / speed-up is linear in the iterations: 10.86 + 0.469 n ms, and 160.6 s for all instances."""
    setting = started(tokens=512)
    setting.settings = replace(setting.settings, hardware=machine)
    setting.measure()
    assert setting.alone_s == pytest.approx(5.8, rel=1e-3)
    rows_s = 32 / setting.throughput[32] - 1 / setting.throughput[1]
    assert rows_s / 31 == pytest.approx(0.469e-3, rel=0.05)  # at contexts that are as long as in the mean
    instances = setting.instances(setting.requests([0.0] * 32))
    assert instances.latency_s == pytest.approx(160.6, rel=5e-3)  # the contexts differ a little from the mean


def test_intervals_are_the_papers_fractions_of_a_request_alone() -> None:
    setting = started(tokens=64)
    assert setting.seconds(5800) == pytest.approx(setting.alone_s)
    assert setting.seconds(500) == pytest.approx(setting.alone_s * 500 / 5800)
    assert [setting.length(paper_tokens) for paper_tokens in (128, 256, 1792)] == [16, 32, 224]


def test_requests_are_the_same_for_every_contender_and_have_exact_lengths() -> None:
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


def test_the_contenders_get_the_same_requests_and_all_the_room_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = started(tokens=8, drawn=False)
    requests = setting.requests([0.0, 1.0, 2.0], [8, 6, 4], prompts=2)
    outcome = setting.fusion(requests)
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr(setting, "outcome", lambda *arguments: served.append(arguments) or outcome)
    setting.contest(lambda number: requests, unshuffled=True)
    (_, _, slots, fused), (_, _, _, unshuffled), (_, _, sums, alone), (_, single, _, _) = served
    assert [name for name, *_ in served] == ["fusion", "fusion", "instances", "fusion"]
    assert all(one[1] == requests for one in served[:3])
    assert len(single) == 1
    assert slots == 6 * (8 + 8)  # a slot for each prompt, as wide as the longest
    assert sums == 2 * (15 + 13 + 11)
    assert fused["memory.slots"] == unshuffled["memory.slots"] == 6
    assert (fused["memory.shuffle"], unshuffled["memory.shuffle"]) == (True, False)
    assert alone == {"batching.instances": 3}  # no request waits for an instance


def test_the_notes_give_the_scaling_and_the_throughput_of_batches() -> None:
    setting = started(tokens=64)
    how, yields = setting.notes()
    assert "One number is calibrated: its memory bandwidth" in how
    assert yields.startswith("tokens/s of the fused stream at batch 1, 2, 4, 8, 16, 32: ")
    speeds = list(setting.throughput.values())
    assert speeds == sorted(speeds)
    share, bound = setting.about_instances()
    assert f"{speeds[-1] / speeds[0]:.1f} times" in bound
    assert "evenly" in share


def test_throughput_is_that_of_whole_batches() -> None:
    speed = started(tokens=8).throughput
    assert speed[32] == pytest.approx(32 * speed[1], rel=0.05)  # short contexts: an iteration only reads the weights


def test_the_dtype_is_half_precision_where_the_machine_is_fast_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda found=supported: found)
        assert half_precision() == dtype
        assert Setting(Conditions(scale="quick"), 16, []).settings.dtype == dtype
    monkeypatch.delattr("torch.cpu._is_amx_tile_supported")
    assert half_precision() == "float32"
    assert Setting(Conditions(scale="paper"), 16, []).settings.dtype == "float16"
