"""Load sweeps: largest batches, rates, saturation, and a sweep that is only recorded."""

from __future__ import annotations

import math
from typing import Any

import pytest
from papers.figures import curve, outcome
from papers.figures import run as values

from minifuse.core.request import Request
from minifuse.papers.batchmaker.contenders import PADDED
from minifuse.papers.batchmaker.fig2_7 import slow_from
from minifuse.papers.batchmaker.load import Load, best_size, num_requests, sweep, with_moderate
from minifuse.papers.batchmaker.setting import Setting
from minifuse.papers.curve import Contender, Curve, Served, load_at, offered, steady_rate
from minifuse.papers.experiment import Conditions, Say


def test_the_largest_batch_is_the_smallest_that_is_as_good_as_the_best() -> None:
    assert best_size({16: 100.0, 32: 200.0, 64: 199.0}) == 32
    assert best_size({16: 100.0, 32: 195.0, 64: 200.0}) == 64  # 2.5% less
    assert best_size({16: 100.0, 32: 196.0, 64: 200.0}) == 32
    assert best_size({64: 1.0}) == 64


def test_rates_are_shares_of_the_peak_or_requests_per_second() -> None:
    assert offered((0.25, 2.0), 400.0) == (100.0, 800.0)
    assert offered((1.2, 1.5), 400.0) == (480.0, 600.0)
    assert offered((2.5, 40.0), 400.0) == (2.5, 40.0)
    assert with_moderate((100.0, 200.0), 201.0) == (100.0, 200.0)
    assert with_moderate((100.0, 200.0), 200.0) == (80.0, 100.0, 200.0)
    assert [num_requests(100, rate, 50.0, 0.25) for rate in (1.0, 20.0, 40.0, 50.0, 90.0)] == [25, 40, 80, 100, 100]


def test_medians_count_value_by_value() -> None:
    middle = outcome(*(values(speed, p90) for speed, p90 in ((3.0, 2.0), (1.0, 3.0), (2.0, 6.0))))
    assert (middle["throughput"], middle["p90"]) == (2.0, 3.0)
    assert middle.each("throughput") == (3.0, 1.0, 2.0)
    rounds = {"x_p90_ms_rounds": (2000.0, 3000.0, 6000.0), "x_throughput_rounds": (3.0, 1.0, 2.0)}
    assert middle.values("x") == {"x_throughput": 2.0, "x_p90_ms": 3000.0, "x_mean_batch": 0.0, **rounds}


def test_a_contender_is_saturated_when_more_load_stops_to_help() -> None:
    growing = {50.0: values(50.0), 90.0: values(88.0)}
    assert not curve(80.0, {90.0: values(80.0)}).saturated  # one point tells nothing
    assert not curve(80.0, growing).saturated
    assert not curve(200.0, {50.0: values(50.0), 90.0: values(50.0)}).saturated  # below what it can serve
    assert curve(80.0, {**growing, 120.0: values(89.0)}).saturated
    assert not curve(80.0, {**growing, 120.0: values(95.0)}).saturated


def test_every_rate_is_offered_to_contenders_whose_throughput_still_grows() -> None:
    curves = {"fast": curve(100.0, {}), "slow": curve(20.0, {})}
    runs: list[tuple[str, float]] = []

    def run(one: Curve, rate: float, number: int) -> Served:
        name = next(name for name, other in curves.items() if other is one)
        runs.append((name, rate))
        return values(min(rate, one.capacity))

    load_at(curves, (10.0, 50.0, 60.0, 90.0, 150.0), run, 1, Say())
    assert list(curves["slow"].points) == [10.0, 50.0, 60.0]
    assert list(curves["fast"].points) == [10.0, 50.0, 60.0, 90.0, 150.0]
    assert runs[:4] == [("fast", 10.0), ("slow", 10.0), ("slow", 50.0), ("fast", 50.0)]
    assert curves["fast"].peak == 100.0


def test_load_at_equal_latency_lies_on_the_line_between_two_rates() -> None:
    one = curve(0.0, {1.0: values(100.0, 0.010), 2.0: values(200.0, 0.030), 3.0: values(210.0, 0.130)})
    assert one.load_at(0.020) == pytest.approx(150.0)
    assert one.load_at(0.080) == pytest.approx(205.0)
    assert one.load_at(0.130) == one.load_at(9.0) == 210.0
    assert one.load_at(0.005) is None
    dent = curve(0.0, {1.0: values(10.0, 0.1), 2.0: values(20.0, 0.3), 3.0: values(30.0, 0.1), 4.0: values(40, 0.3)})
    assert dent.load_at(0.2) == pytest.approx(35.0)  # the last time it is crossed


def test_the_load_at_which_baselines_are_slow_is_open_while_one_is_fast() -> None:
    steep = curve(0.0, {100.0: values(100.0, 0.1), 200.0: values(150.0, 0.9)})
    late = curve(0.0, {100.0: values(100.0, 0.2), 300.0: values(150.0, 1.4)})
    assert slow_from([steep, late]) == (pytest.approx(150.0), pytest.approx(150.0))
    flat = curve(0.0, {100.0: values(100.0, 0.1), 400.0: values(150.0, 0.2)})
    assert slow_from([steep, flat]) == (400.0, math.inf)


class Recorder(Setting):
    """A setting that records the runs; cellular batching is twice as fast, up to batches of 8."""

    served: list[tuple[str, int, str, tuple[Request, ...]]]

    def run(self, contender: Contender, max_batch: int, workload: str, count: int, rate: float, number: int) -> Served:
        if not hasattr(self, "served"):
            self.served = []
        requests = self.requests(workload, count, rate, number)
        self.served.append((contender.key, max_batch, workload, tuple(requests)))
        speed, p90 = (20.0, 0.001) if contender.technique == "cellular" else (10.0, 0.004)
        most = min(max_batch, 8) * speed
        last = requests[-1].arrival_s
        return values(min(most, (len(requests) - 1) / last if last else most), p90)


def recorded(**conditions: Any) -> tuple[Recorder, Load]:
    recorder = Recorder(Conditions(scale="quick", **{"requests": 40, **conditions}), "lstm")
    return recorder, sweep(recorder, Say(), PADDED, "wmt15", (4, 8, 16))


def test_a_sweep_chooses_batches_then_offers_every_contender_the_same_requests() -> None:
    recorder, load = recorded(rates=(0.25, 0.5, 1.5))
    assert {key: one.max_batch for key, one in load.curves.items()} == {"cellular": 8, "longest": 8, "bucket": 8}
    assert load.capacities["longest"] == {4: 40.0, 8: 80.0, 16: 80.0}
    assert load.peak == 160.0
    assert list(load.curves["cellular"].points) == [40.0, 80.0, 240.0]
    at_once, chosen, loaded = recorder.served[:9], recorder.served[9:12], recorder.served[12:]
    assert {size for _, size, _, _ in at_once} == {4, 8, 16}
    assert {len(requests) for *_, requests in at_once} == {24}  # few of them decide
    assert [(size, len(requests)) for _, size, _, requests in chosen] == [(8, 40)] * 3
    assert all(request.arrival_s == 0 for *_, requests in at_once for request in requests)
    assert [key for key, *_ in at_once[:6]] == ["cellular", "longest", "bucket", "longest", "bucket", "cellular"]
    assert all(len({run[3] for run in loaded[i : i + 3]}) == 1 for i in range(0, 9, 3))
    assert [len(loaded[i][3]) for i in (0, 3, 6)] == [10, 20, 40]
    prompts = [request.prompt for request in loaded[-1][3]]
    assert [request.prompt for request in loaded[0][3]] == prompts[:10]
    sizes, peaks = load.notes("a", "512")
    assert sizes.startswith("(a) wmt15: the largest batch of each is the smallest of 4, 8, 16 at which")
    assert sizes.endswith(": cellular 8, longest 8, bucket 8 (thesis: 512).")
    assert "160 requests/s of cellular" in peaks
    loaded_panel, peaks_panel = load.panels("x", "load", {"cellular": {"peak": 5.0}})
    points = peaks_panel.points
    assert [point.measured["max_batch"] for point in points] == [8, 8, 8]
    assert [point.measured["p90_ms"] for point in points] == [1.0, 4.0, 4.0]
    assert points[0].paper == {"peak": 5.0}
    drawn = [column.head for column in loaded_panel.columns if column.axis == "y"]
    assert drawn == ["cellular\np90 ms", "longest\np90 ms", "bucket\np90 ms"]  # not their ranges
    first = loaded_panel.points[0]
    assert (first.at["share"], first.measured["longest_p90_ms"]) == (0.25, 4.0)


def test_rates_that_are_typed_are_taken_and_the_scales_have_a_moderate_one() -> None:
    assert list(recorded(rates=(30.0, 70.0))[1].curves["cellular"].points) == [30.0, 70.0]
    assert list(recorded()[1].curves["cellular"].points) == [32.0, 192.0]  # 0.2 and 1.2, below half of 80


def test_a_steady_rate_leaves_out_the_beginning_and_the_end() -> None:
    slow_start, slow_end = [10.0, 20.0, 39.5], [100.0, 150.0, 200.0]
    assert steady_rate([*slow_end, *(40.0 + i / 2 for i in range(6)), *slow_start]) == pytest.approx(2.0)
    bursts = [float(i) for i in range(8) for _ in range(64)]  # 64 requests end at once, every second
    assert steady_rate(bursts) == pytest.approx(64.0)
    assert steady_rate([1.0] * 8) is None
    assert steady_rate([1.0]) is None
