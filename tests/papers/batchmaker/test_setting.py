"""BatchMaker's numbers, the fitted machine, the contenders' options, requests."""

from __future__ import annotations

from itertools import pairwise
from statistics import pstdev

import pytest

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker import setting
from minifuse.papers.batchmaker.contenders import CELLULAR, MERGED, RIVALS, padded
from minifuse.papers.batchmaker.load import AT_ONCE
from minifuse.papers.batchmaker.machine import fitted, scheduling_s
from minifuse.papers.batchmaker.setting import Setting
from minifuse.papers.curve import Contender, rate_while
from minifuse.papers.experiment import Conditions, Say
from minifuse.simulate.cost import hardware


@pytest.fixture(autouse=True)
def _three_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit the machine to fewer trees: three sets of 64."""
    monkeypatch.setattr(setting, "CALIBRATED", 192)


def test_the_thesis_numbers_agree_with_each_other() -> None:
    batches = int(1 / (paper.STEP_US[512] * 1e-6 * paper.MEAN_LENGTH))
    assert (batches, batches * 512) == (53, paper.IDEAL_11)  # 2.7.3
    waits_us = paper.MAX_TASKS * paper.TASK_US
    assert waits_us == 1250  # "0.25 x 5 = 1.25 milliseconds, which roughly matches" 1.38
    assert paper.GAIN_7.judge([paper.PEAK_7 / paper.SLOWEST_7]) == "agrees"
    assert paper.CUT_DYNET_14.judge([1 - paper.P90_14 / paper.DYNET_P90_14]) == "agrees"
    assert paper.LEAVES_15 * 2 - 1 == paper.CELLS_15
    assert paper.GRAPH_ENDS_5["req4"] + paper.LONGEST_5 == paper.GRAPH_ENDS_5["req8"]
    assert max(paper.LENGTHS_5.values()) == paper.GRAPH_ENDS_5["req1"]


def test_the_thesis_numbers_are_those_of_the_text() -> None:
    assert dict(paper.STEP_US) == {64: 185, 512: 784}
    assert (paper.P90_7, paper.BASELINE_P90_7, paper.FLAT_7) == (12, 25, 8000)
    assert [(one.least, one.most) for one in (paper.CUTS_7, paper.CUTS_13)] == [(0.375, 0.905), (0.175, 0.826)]
    assert (paper.QUEUEING_P99_9, paper.BASELINE_QUEUEING_P99_9) == (1.38, 100)
    assert dict(paper.PEAK_13) == {2: 8500, 4: 17000}
    assert (paper.GAIN_13.text, paper.TWO_SIZES_13.text) == ("1.60x, within 10%", "1.035x to 1.060x")
    assert (paper.PEAK_14, paper.DYNET_PEAK_14) == (3100, 2100)
    assert [one.text for one in (paper.GAIN_DYNET_14, paper.PEAK_GAIN_DYNET_14, paper.GAIN_FOLD_14)] == [
        "1.80x by the summary, within 10%",
        "1.48x by the peaks, within 10%",
        "4.00x, within 10%",
    ]
    assert [one.text for one in (paper.CUT_DYNET_14, paper.CUT_FOLD_14)] == [
        "28.0%, within 5 points",
        "87.0%, within 5 points",
    ]
    assert (paper.SHARE_11, paper.SHARE_15) == (0.87, 0.7)


def test_the_fitted_machine_takes_the_thesis_times() -> None:
    virtual = Setting(Conditions(scale="paper"), "lstm")
    virtual.start(Say())
    for batch, us in paper.STEP_US.items():
        assert virtual.cost_s("lstm", batch) == pytest.approx(us * 1e-6, rel=1e-9)
    assert virtual.cost_s("lstm", 1) == pytest.approx(185e-6, rel=0.03)  # smaller batches take about as long as 64
    sheet = hardware(paper.MACHINE)
    assert sheet.wide_flops is not None
    assert fitted().wide_flops is not None
    assert 0.5 < fitted().wide_flops / sheet.wide_flops < 1  # no faster than the data sheet says
    assert 0.4 < fitted().bandwidth / sheet.bandwidth < 1
    assert fitted().memory == 16e9
    assert scheduling_s() == pytest.approx(65e-6)


def trees() -> Setting:
    found = Setting(Conditions(scale="paper"), "treelstm", hidden=64, vocab=16)
    found.start(Say())
    return found


def test_the_overhead_of_each_contender_in_virtual_time() -> None:
    virtual = trees()
    overheads = {}
    for contender in (CELLULAR, *MERGED):
        virtual._batched(contender)
        overheads[contender.key] = hardware(virtual._machine(contender)).overhead_s
    alone = virtual.slowdown * fitted().overhead_s
    assert overheads["cell"] == pytest.approx(alone)
    assert overheads["cellular"] == pytest.approx(alone + virtual.slowdown * 65e-6)
    assert virtual.operators_per_cell > 5
    assert overheads["operator"] * virtual.operators_per_cell == pytest.approx(alone)


def test_trees_are_as_fast_as_in_the_thesis_once_fitted() -> None:
    """The device is fitted to the peak of cellular batching, each rival's host to the rival's peak."""
    virtual = trees()
    peaks = {one.key: virtual._capacity(one) for one in (CELLULAR, *RIVALS)}
    assert peaks == pytest.approx({"cellular": 3100, "dynet": 2100, "fold": 775}, rel=0.01)
    dynet, fold = RIVALS
    assert virtual._machine(fold).host_node_s == virtual.host_node_s(fold) > virtual.host_node_s(dynet) > 0
    assert virtual._machine(CELLULAR).host_node_s == 0
    free = [virtual._capacity(one) for one in MERGED]
    assert free[0] > 2100
    assert free[1] > 775


def test_options_of_a_contender() -> None:
    two = Contender("two", "two sizes", "cellular", {"batching.workers": 2}, twice="encoder")
    assert two.sized(256) == {
        "batching.workers": 2,
        "batching.max_batch": 256,
        "batching.max_batches": "encoder=512",
    }
    assert padded("w5", "width 5", "bucket", 5, workers=3).sized(8) == {
        "batching.pad": "bucket",
        "batching.bucket_width": 5,
        "batching.workers": 3,
        "batching.max_batch": 8,
    }


def test_requests_are_a_poisson_process_or_all_come_at_once() -> None:
    quick = Setting(Conditions(scale="quick"), "lstm")
    slow, fast, at_once = (quick.requests("wmt15", 200, rate, 0) for rate in (10.0, 100.0, AT_ONCE))
    assert slow[-1].arrival_s == pytest.approx(10 * fast[-1].arrival_s)
    assert slow[-1].arrival_s == pytest.approx(20.0, rel=0.3)
    gaps = [late.arrival_s - early.arrival_s for early, late in pairwise(fast)]
    assert pstdev(gaps) == pytest.approx(0.01, rel=0.3)  # as large as their mean
    assert {request.arrival_s for request in at_once} == {0.0}
    assert [request.prompt for request in slow] == [request.prompt for request in at_once]
    assert quick.requests("wmt15", 200, 10.0, 1)[0] != slow[0]  # of another round


def test_throughput_counts_what_ends_while_requests_arrive() -> None:
    """Afterwards batches have other lengths. If all come at once, the whole run counts."""
    virtual = Setting(Conditions(scale="paper"), "lstm", hidden=8, vocab=16)
    virtual.start(Say())
    bucket = padded("b", "bucket", "bucket")
    assert virtual.run(bucket, 8, "wmt15", 40, 20.0, 0)["throughput"] == pytest.approx(20, rel=0.2)
    assert rate_while(0.0, [1.0] * 40) is None
    assert rate_while(4.0, [2.0] * 7) is None
    at_once, slower = (virtual.run(bucket, 8, "wmt15", 24, rate, 0) for rate in (AT_ONCE, 1e9))
    assert at_once["throughput"] == pytest.approx(slower["throughput"], rel=0.1)
