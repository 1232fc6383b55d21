"""BatchMaker's figures: the thesis' numbers, the fitted machine, loads and rates by hand, every figure in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from itertools import pairwise
from statistics import pstdev
from typing import Any

import pytest

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce import EXPERIMENTS, Conditions, Finding, Panel, batchmaker_chains, experiments
from minifuse.reproduce.batchmaker_chains import CELLULAR, PADDED, padded
from minifuse.reproduce.batchmaker_load import (
    AT_ONCE,
    Contender,
    Curve,
    Outcome,
    best_size,
    cuts,
    in_turns,
    load_at,
    num_requests,
    offered,
    saturated,
    throughput_at,
    with_moderate,
)
from minifuse.reproduce.batchmaker_machine import fitted, scheduling_s
from minifuse.reproduce.batchmaker_notes import aim, bounds, chosen, cut_aim, gain_aim, shown
from minifuse.reproduce.batchmaker_panels import Load, curve_panel, measure, peak_panel
from minifuse.reproduce.batchmaker_setting import Setting, setting
from minifuse.reproduce.batchmaker_timeline import Life
from minifuse.reproduce.batchmaker_trees import CONTENDERS
from minifuse.reproduce.batchmaker_trees import ideal_s as ideal_tree_s
from minifuse.request import Request
from minifuse.simulate.cost import hardware

SMALL = {"hidden": 4, "requests": 8}
NAMES = [f"batchmaker-fig2.{number}" for number in (3, 5, 7, 8, 9, 11, 13, 14, 15)]


@cache
def found(name: str, scale: str = "quick") -> Finding:
    row = EXPERIMENTS[name]
    given = {key: value for key, value in SMALL.items() if key in row.takes}
    return row.prepare(Conditions(scale=scale, **given))(lambda what: None)


def outcome(throughput: float, p90: float = 1.0, **others: float) -> Outcome:
    values = {field.name: others.get(field.name, 0.0) for field in fields(Outcome)}
    return Outcome(**{**values, "throughput": throughput, "p90": p90})


def curve(capacity: float, points: Mapping[float, Outcome], key: str = "cellular") -> Curve:
    return Curve(Contender(key, key, "cellular"), 64, capacity, dict(points))


def panel(finding: Finding, words: str) -> Panel:
    return next(panel for panel in finding.panels if words in panel.title)


def number(value: Any) -> float:
    assert isinstance(value, float | int)
    return float(value)


# --- what the thesis says


def test_the_thesis_numbers_agree_with_each_other() -> None:
    batches = int(1 / (paper.STEP_US[512] * 1e-6 * paper.MEAN_LENGTH))
    assert (batches, batches * 512) == (53, paper.IDEAL_11)  # 2.7.3
    waits_us = paper.MAX_TASKS * paper.TASK_US
    assert waits_us == 1250  # "0.25 x 5 = 1.25 milliseconds, which roughly matches" 1.38
    assert paper.PEAK_7 / paper.SLOWEST_7 - 1 == paper.GAIN_7
    assert pytest.approx(paper.CUT_DYNET_14, abs=0.005) == 1 - paper.P90_14 / paper.DYNET_P90_14
    assert paper.LEAVES_15 * 2 - 1 == paper.CELLS_15
    assert paper.GRAPH_ENDS_5["req4"] + paper.LONGEST_5 == paper.GRAPH_ENDS_5["req8"]
    assert max(paper.LENGTHS_5.values()) == paper.GRAPH_ENDS_5["req1"]


def test_the_thesis_numbers_are_those_of_the_text() -> None:
    assert dict(paper.STEP_US) == {64: 185, 512: 784}
    assert (paper.P90_7, paper.BASELINE_P90_7, paper.FLAT_7) == (12, 25, 8000)
    assert (paper.CUTS_7, paper.CUTS_13) == ((0.375, 0.905), (0.175, 0.826))
    assert (paper.QUEUEING_P99_9, paper.BASELINE_QUEUEING_P99_9) == (1.38, 100)
    assert (dict(paper.PEAK_13), paper.GAIN_13, paper.TWO_SIZES_13) == ({2: 8500, 4: 17000}, 0.6, (0.035, 0.06))
    assert (paper.PEAK_14, paper.DYNET_PEAK_14) == (3100, 2100)
    assert (paper.GAIN_DYNET_14, paper.GAIN_FOLD_14, paper.CUT_FOLD_14) == (1.8, 4, 0.87)
    assert (paper.SHARE_11, paper.SHARE_15) == (0.87, 0.7)


def test_the_fitted_machine_takes_the_thesis_times() -> None:
    virtual = setting(Conditions(scale="paper"), "lstm")
    virtual.start(lambda what: None)
    for batch, us in paper.STEP_US.items():
        assert virtual.cost_s("lstm", batch) == pytest.approx(us * 1e-6, rel=1e-9)
    sheet = hardware(paper.MACHINE)
    assert sheet.wide_flops is not None
    assert fitted().wide_flops is not None
    assert 0.5 < number(fitted().wide_flops) / sheet.wide_flops < 1  # no faster than the data sheet says
    assert (fitted().bandwidth, fitted().memory) == (0.9e12, 16e9)
    assert scheduling_s() == pytest.approx(65e-6)


def test_who_pays_what_in_virtual_time() -> None:
    virtual = setting(Conditions(scale="paper"), "treelstm", hidden=8, vocab=16)
    virtual.start(lambda what: None)
    overheads = {}
    for contender in CONTENDERS:
        virtual._batched(contender)
        overheads[contender.key] = number(hardware(virtual._machine(contender)).overhead_s)
    alone = fitted().overhead_s
    assert overheads["fold"] == alone
    assert overheads["cellular"] == pytest.approx(alone + 65e-6)
    assert virtual.operators_per_cell > 5
    assert overheads["dynet"] * virtual.operators_per_cell == pytest.approx(alone)


# --- loads by hand


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
    assert [num_requests(100, rate, 50.0) for rate in (1.0, 20.0, 40.0, 50.0, 90.0)] == [25, 40, 80, 100, 100]


def test_turns_are_taken_in_every_round_and_medians_count() -> None:
    order: list[str] = []
    speeds = {"a": [3.0, 1.0, 2.0], "b": [5.0, 9.0, 7.0]}

    def run(name: str) -> Outcome:
        order.append(name)
        return outcome(speeds[name].pop(0), p90=float(len(order)))

    medians = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, 3, first=1)
    assert "".join(order) == "baabba"
    assert (medians["a"].throughput, medians["b"].throughput) == (2.0, 7.0)
    assert (medians["a"].p90, medians["b"].p90) == (3.0, 4.0)  # of 2, 3, 6 and of 1, 4, 5


def test_a_contender_is_saturated_when_more_load_stops_to_help() -> None:
    growing = {50.0: outcome(50.0), 90.0: outcome(88.0)}
    assert not saturated(curve(80.0, {90.0: outcome(80.0)}))  # one point tells nothing
    assert not saturated(curve(80.0, growing))
    assert not saturated(curve(200.0, {50.0: outcome(50.0), 90.0: outcome(50.0)}))  # below what it can serve
    assert saturated(curve(80.0, {**growing, 120.0: outcome(89.0)}))
    assert not saturated(curve(80.0, {**growing, 120.0: outcome(95.0)}))


def test_every_rate_is_offered_to_whose_throughput_still_grows() -> None:
    curves = {"fast": curve(100.0, {}), "slow": curve(20.0, {})}
    asked: list[tuple[str, float]] = []

    def run(one: Curve, rate: float) -> Outcome:
        name = next(name for name, other in curves.items() if other is one)
        asked.append((name, rate))
        return outcome(min(rate, one.capacity))

    load_at(curves, (10.0, 50.0, 60.0, 90.0, 150.0), run, 1, lambda what: None)
    assert list(curves["slow"].points) == [10.0, 50.0, 60.0]
    assert list(curves["fast"].points) == [10.0, 50.0, 60.0, 90.0, 150.0]
    assert asked[:4] == [("fast", 10.0), ("slow", 10.0), ("slow", 50.0), ("fast", 50.0)]
    assert curves["fast"].peak == 100.0


def test_throughput_at_equal_latency_lies_on_the_line_between_two_rates() -> None:
    one = curve(0.0, {1.0: outcome(100.0, 0.010), 2.0: outcome(200.0, 0.030), 3.0: outcome(210.0, 0.130)})
    assert throughput_at(one, 0.020) == pytest.approx(150.0)
    assert throughput_at(one, 0.080) == pytest.approx(205.0)
    assert throughput_at(one, 0.130) == throughput_at(one, 9.0) == 210.0
    assert throughput_at(one, 0.005) is None
    dent = curve(
        0.0, {1.0: outcome(10.0, 0.1), 2.0: outcome(20.0, 0.3), 3.0: outcome(30.0, 0.1), 4.0: outcome(40, 0.3)}
    )
    assert throughput_at(dent, 0.2) == pytest.approx(35.0)  # the last time it is crossed


def test_moderate_load_is_below_half_of_the_best_baselines_peak() -> None:
    ours = curve(400.0, {rate: outcome(rate, 0.01) for rate in (40.0, 90.0, 110.0, 300.0)})
    weak = curve(100.0, {40.0: outcome(40.0, 0.02), 90.0: outcome(90.0, 0.10)})
    strong = curve(200.0, {40.0: outcome(40.0, 0.05), 90.0: outcome(90.0, 0.04), 110.0: outcome(110.0, 0.05)})
    assert cuts(ours, weak, strong) == pytest.approx({40.0: 0.5, 90.0: 0.75})  # against the lower of both
    assert cuts(ours, weak) == pytest.approx({40.0: 0.5})


def test_aims_are_judged_by_their_numbers() -> None:
    ours = curve(126.0, {10.0: outcome(10.0, 0.02)})
    theirs = curve(100.0, {10.0: outcome(10.0, 0.04)}, "padded")
    assert gain_aim("LSTM,", ours, theirs, 0.25) == (
        "Aim, LSTM, peak throughput: met: +26.0%, 126 against 100 requests/s of padded (thesis: +25.0%)."
    )
    assert "not met: +26.0%" in gain_aim("LSTM,", ours, theirs, 0.27)
    met = "Aim, LSTM, 90th percentile at moderate load: met: -50.0% at 10 requests/s (thesis: -37.5% to -90.5%)."
    assert cut_aim("LSTM,", ours, [theirs], paper.CUTS_7) == met
    assert ": not met: -50.0%" in cut_aim("", ours, [theirs], 0.87)
    assert ": cannot be told: no rate lies below 50%" in cut_aim("", ours, [curve(15.0, theirs.points)], 0.28)
    assert aim("a", "b", "c", None) == "Aim, a: cannot be told: b (thesis: c)."
    assert [shown(rate) for rate in (0.1234, 999.0, 12345.6)] == ["0.123", "999", "12,346"]


class Recorder(Setting):
    """A setting that writes down what it is asked to serve; who is cellular is twice as fast, up to batches of 8."""

    served: list[tuple[str, int, str, tuple[Request, ...]]]

    def serve(self, contender: Contender, max_batch: int, workload: str, requests: Any) -> Outcome:
        if not hasattr(self, "served"):
            self.served = []
        self.served.append((contender.key, max_batch, workload, tuple(requests)))
        most = min(max_batch, 8) * (20.0 if contender.cellular else 10.0)
        last = requests[-1].arrival_s
        return outcome(min(most, (len(requests) - 1) / last if last else most), 0.001 if contender.cellular else 0.004)


def recorded(**conditions: Any) -> tuple[Recorder, Load]:
    own = setting(Conditions(scale="quick", **{"requests": 40, **conditions}), "lstm")
    recorder = Recorder(own.conditions, "lstm", own.scale)
    return recorder, measure(recorder, lambda what: None, (CELLULAR, *PADDED), "wmt15", (4, 8, 16))


def test_a_load_test_chooses_batches_then_rates_the_same_for_everybody() -> None:
    recorder, load = recorded(rates=(0.25, 0.5, 1.5))
    assert {key: one.max_batch for key, one in load.curves.items()} == {"cellular": 8, "longest": 8, "bucket": 8}
    assert load.capacities["longest"] == {4: 40.0, 8: 80.0, 16: 80.0}
    assert load.peak == 160.0
    assert list(load.curves["cellular"].points) == [40.0, 80.0, 240.0]
    sweep, loaded = recorder.served[:9], recorder.served[9:]
    assert {size for _, size, _, _ in sweep} == {4, 8, 16}
    assert all(request.arrival_s == 0 for *_, requests in sweep for request in requests)
    assert [key for key, *_ in sweep[:6]] == ["cellular", "longest", "bucket", "longest", "bucket", "cellular"]
    assert all(len({run[3] for run in loaded[i : i + 3]}) == 1 for i in range(0, 9, 3))
    assert [len(loaded[i][3]) for i in (0, 3, 6)] == [10, 20, 40]
    prompts = [request.prompt for request in loaded[-1][3]]
    assert [request.prompt for request in loaded[0][3]] == prompts[:10]
    assert "cellular 8, longest 8, bucket 8" in chosen(load)
    assert "160 requests/s of cellular" in bounds(load)
    peaks = peak_panel("peaks", load, {"cellular": {"peak": 5.0}}).points
    assert [point.measured["max_batch"] for point in peaks] == [8, 8, 8]
    assert [point.measured["p90_ms"] for point in peaks] == [1.0, 4.0, 4.0]
    assert peaks[0].paper == {"peak": 5.0}
    first = curve_panel("load", load).points[0]
    assert (first.at["share"], first.measured["longest_p90_ms"]) == (0.25, 4.0)


def test_rates_that_are_typed_are_taken_and_the_scales_have_a_moderate_one() -> None:
    assert list(recorded(rates=(30.0, 70.0))[1].curves["cellular"].points) == [30.0, 70.0]
    assert list(recorded()[1].curves["cellular"].points) == [32.0, 192.0]  # 0.2 and 1.2, below half of 80


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
    own = setting(Conditions(scale="quick"), "lstm")
    slow, fast, at_once = (own.requests("wmt15", 200, rate) for rate in (10.0, 100.0, AT_ONCE))
    assert slow[-1].arrival_s == pytest.approx(10 * fast[-1].arrival_s)
    assert slow[-1].arrival_s == pytest.approx(20.0, rel=0.3)
    gaps = [late.arrival_s - early.arrival_s for early, late in pairwise(fast)]
    assert pstdev(gaps) == pytest.approx(0.01, rel=0.3)  # as large as their mean
    assert {request.arrival_s for request in at_once} == {0.0}
    assert [request.prompt for request in slow] == [request.prompt for request in at_once]


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_the_ideals_compute_their_cells_and_nothing_else(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    calls: list[tuple[str, int]] = []

    def cost(own: Setting, cell: str, rows: int) -> float:
        calls.append((cell, rows))
        return {"lstm": 2.0, "leaf": 3.0, "internal2": 5.0}[cell]

    def once(own: Setting, run: Any) -> float:
        inner = own.model.run

        def counted(cell: str, *inputs: Any) -> Any:
            calls.append((cell, len(inputs[0])))
            return inner(cell, *inputs)

        monkeypatch.setattr(own.model, "run", counted)
        run()
        return sum({"lstm": 2.0, "leaf": 3.0, "internal2": 5.0}[cell] for cell, _ in calls)

    monkeypatch.setattr(Setting, "cost_s", cost)
    monkeypatch.setattr(Setting, "timed", once)
    for kind, ideal, seconds in (("lstm", batchmaker_chains.ideal_s, 48.0), ("treelstm", ideal_tree_s, 123.0)):
        calls.clear()
        own = setting(Conditions(scale=scale), kind, hidden=4, vocab=16)
        own.start(lambda what: None)
        assert ideal(own, 6) == seconds  # 24 steps; 16 leaves and 15 internal nodes
        assert {rows for _, rows in calls} == {6}
        if scale == "quick":
            assert len(calls) == {"lstm": paper.MEAN_LENGTH, "treelstm": paper.CELLS_15}[kind]


# --- every figure


def test_the_figures_are_the_thesis() -> None:
    assert [row.name for row in experiments("batchmaker")] == NAMES
    assert {row.paper for row in experiments("batchmaker")} == {"BatchMaker"}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_runs_in_seconds_and_is_complete(name: str) -> None:
    finding = found(name)
    assert finding.facts["scale"] == "quick"
    for one in finding.panels:
        assert one.points
        for column in one.columns:
            assert all(column.cell(point) for point in one.points)
            if column.part == "measured" and "peak" not in one.title:
                assert any(point.measured.get(column.key) is not None for point in one.points), column.key
    assert any(note.startswith("Aim, ") for note in finding.notes)
    assert all(note.endswith(".") and "nan" not in note for note in finding.notes)


def test_the_timeline_is_the_thesis() -> None:
    lives = {point.at["request"]: point.measured for point in found("batchmaker-fig2.5").panels[0].points}
    assert [lives[f"req{i}"]["graph_end"] for i in range(1, 9)] == [5] * 4 + [12] * 4
    assert [lives[f"req{i}"]["cellular_end"] for i in (1, 2, 3)] == [2, 3, 3]
    assert [lives[f"req{i}"]["cellular_start"] for i in (5, 6, 7)] == [2, 3, 3]
    assert (lives["req1"]["graph_line"], lives["req1"]["cellular_line"]) == ("##---.......", "##..........")
    tasks = [point.measured["cellular_task"] for point in found("batchmaker-fig2.5").panels[1].points]
    assert lives["req5"]["graph_line"] == ".wwww####---"
    assert tasks[:4] == ["1 2 3 4", "1 2 3 4", "2 3 4 5", "4 5 6 7"]
    assert sum(": met: " in note for note in found("batchmaker-fig2.5").notes) == 2
    assert Life(2.0, 6.0, (2.0, 3.0, 5.0)).line(1.0, 8) == ".w##-#.."


def test_the_step_has_the_thesis_times_beside_those_of_the_fitted_machine() -> None:
    cpu, v100 = found("batchmaker-fig2.3").panels
    assert [point.at["batch"] for point in cpu.points] == [2**power for power in range(12)]
    told = {point.at["batch"]: point.paper["us"] for point in v100.points if point.paper}
    assert told == dict(paper.STEP_US)
    for point in v100.points:
        if point.paper:
            assert point.measured["us"] == pytest.approx(point.paper["us"])
    (alone,) = EXPERIMENTS["batchmaker-fig2.3"].prepare(Conditions(scale="paper"))(lambda what: None).panels
    assert alone.points == v100.points


def test_what_each_figure_compares() -> None:
    heads = {
        name: [point.at["contender"] for point in panel(found(f"batchmaker-fig{name}"), "peaks").points]
        for name in ("2.7", "2.8", "2.11", "2.13", "2.14", "2.15")
    }
    assert heads["2.7"] == heads["2.11"] == ["cellular", "longest", "bucket"]
    assert heads["2.8"] == ["width 1", "width 10", "width 40"]
    assert heads["2.13"] == ["one size", "two sizes", "longest", "bucket"]
    assert heads["2.14"] == heads["2.15"] == ["cellular", "per operator", "per cell"]
    assert [one.title for one in found("batchmaker-fig2.13").panels if "peaks" not in one.title] == [
        "Fig. 2.13: 1 worker",
        "Fig. 2.13: 2 workers",
    ]
    assert [one.title for one in found("batchmaker-fig2.7").panels if "peaks" not in one.title] == [
        "Fig. 2.7a: each with its best largest batch",
        "Fig. 2.7b: batches of up to 16",
    ]
    queueing, computing = (one.points for one in found("batchmaker-fig2.9").panels)
    assert [point.at["percent"] for point in queueing] == [50, 90, 99] == [p.at["percent"] for p in computing]
    assert {*computing[0].measured} == {"cellular_ms", "longest_ms", "bucket_ms"} == {*queueing[0].measured}
    assert [point.paper for point in queueing] == [{}, {}, {"cellular": "1.38", "baseline": ">100"}]
    shares = {p.at["contender"]: p.measured["share"] for p in panel(found("batchmaker-fig2.15"), "ideal").points}
    assert shares["ideal"] == 1.0
    assert 0 < number(shares["cellular"]) < 1


def test_virtual_time_is_the_same_every_time_and_has_a_device_for_each_worker() -> None:
    finding = found("batchmaker-fig2.13", "paper")
    assert (finding.facts["clock"], finding.facts["hardware"]) == ("virtual", "v100, fitted")
    found.cache_clear()
    again = found("batchmaker-fig2.13", "paper")
    assert again.panels == finding.panels
    peaks = {
        workers: panel(finding, f"peaks, {workers}").points[0].measured["peak"]
        for workers in ("2 workers", "4 workers")
    }
    assert number(peaks["4 workers"]) >= number(peaks["2 workers"])
    assert all("fitted" in found(name, "paper").notes[0] for name in ("batchmaker-fig2.9", "batchmaker-fig2.15"))
