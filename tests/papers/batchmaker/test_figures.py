"""BatchMaker's figures: each in seconds, with what it compares; the timeline, the step, the ideals."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from papers.figures import found, quickly

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers import EXPERIMENTS
from minifuse.papers.batchmaker import fig2_11, fig2_15, setting
from minifuse.papers.batchmaker.contenders import CELLULAR
from minifuse.papers.batchmaker.fig2_5 import Life
from minifuse.papers.batchmaker.ideal import Ideal, against_ideal
from minifuse.papers.batchmaker.load import Load
from minifuse.papers.batchmaker.setting import Setting
from minifuse.papers.curve import Curve
from minifuse.papers.experiment import Conditions, Finding, Panel, Say

SMALL = {"hidden": 4, "requests": 8}


NAMES = [name for name in EXPERIMENTS if name.startswith("batchmaker")]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch)
    monkeypatch.setattr(setting, "CALIBRATED", 8)


@cache
def small(name: str, scale: str = "quick") -> Finding:
    return found(name, scale=scale, **{key: value for key, value in SMALL.items() if key in EXPERIMENTS[name].takes})


def panel(finding: Finding, words: str) -> Panel:
    return next(panel for panel in finding.panels if words in panel.title)


def number(value: Any) -> float:
    assert isinstance(value, float | int)
    return float(value)


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_the_ideals_compute_their_cells_and_nothing_else(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    calls: list[tuple[str, int]] = []

    def cost(setting: Setting, cell: str, rows: int) -> float:
        calls.append((cell, rows))
        return {"lstm": 2.0, "leaf": 3.0, "internal2": 5.0}[cell]

    def once(setting: Setting, run: Any) -> float:
        inner = setting.model.run

        def counted(cell: str, *inputs: Any) -> Any:
            calls.append((cell, len(inputs[0])))
            return inner(cell, *inputs)

        monkeypatch.setattr(setting.model, "run", counted)
        run()
        return sum({"lstm": 2.0, "leaf": 3.0, "internal2": 5.0}[cell] for cell, _ in calls)

    monkeypatch.setattr(Setting, "cost_s", cost)
    monkeypatch.setattr(Setting, "timed", once)
    for kind, ideal, seconds in (("lstm", fig2_11.ideal_s, 48.0), ("treelstm", fig2_15.ideal_s, 123.0)):
        calls.clear()
        setting = Setting(Conditions(scale=scale), kind, hidden=4, vocab=16)
        setting.start(Say())
        assert ideal(setting, 6) == seconds  # 24 steps; 16 leaves and 15 internal nodes
        assert {rows for _, rows in calls} == {6}
        if scale == "quick":
            assert len(calls) == {"lstm": paper.MEAN_LENGTH, "treelstm": paper.CELLS_15}[kind]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_runs_in_seconds_and_is_complete(name: str) -> None:
    finding = small(name)
    assert finding.facts["scale"] == "quick"
    for one in finding.panels:
        assert one.points
        for column in one.columns:
            assert all(column.cell(point) for point in one.points)
            if column.part == "measured" and "peak" not in one.title:
                assert any(point.measured.get(column.key) is not None for point in one.points), column.key
    assert any("(thesis: " in note for note in finding.notes)
    assert all(note.endswith(".") and "None" not in note and "nan" not in note for note in finding.notes)


def test_the_timeline_is_the_thesis() -> None:
    lives = {point.at["request"]: point.measured for point in small("batchmaker-fig2.5").panels[0].points}
    assert [lives[f"req{i}"]["graph_end"] for i in range(1, 9)] == [5] * 4 + [12] * 4
    assert [lives[f"req{i}"]["cellular_end"] for i in (1, 2, 3)] == [2, 3, 3]
    assert [lives[f"req{i}"]["cellular_start"] for i in (5, 6, 7)] == [2, 3, 3]
    assert (lives["req1"]["graph_line"], lives["req1"]["cellular_line"]) == ("##---.......", "##..........")
    tasks = [point.measured["cellular_task"] for point in small("batchmaker-fig2.5").panels[1].points]
    assert lives["req5"]["graph_line"] == ".wwww####---"
    assert tasks[:4] == ["1 2 3 4", "1 2 3 4", "2 3 4 5", "4 5 6 7"]
    assert sum(": agrees: " in note for note in small("batchmaker-fig2.5").notes) == 2
    assert Life(2.0, 6.0, (2.0, 3.0, 5.0)).line(1.0, 8) == ".w##-#.."


def test_the_step_has_the_thesis_times_beside_those_of_the_fitted_machine() -> None:
    cpu, v100 = small("batchmaker-fig2.3").panels
    assert [point.at["batch"] for point in cpu.points] == [2**power for power in range(12)]
    published = {point.at["batch"]: point.paper["us"] for point in v100.points if point.paper}
    assert published == dict(paper.STEP_US)
    for point in v100.points:
        if point.paper:
            assert point.measured["us"] == pytest.approx(point.paper["us"])
    (alone,) = found("batchmaker-fig2.3", scale="paper").panels
    assert alone.points == v100.points


def test_what_each_figure_compares() -> None:
    heads = {
        name: [point.at["contender"] for point in panel(small(f"batchmaker-fig{name}"), "peaks").points]
        for name in ("2.7", "2.8", "2.11", "2.13", "2.14", "2.15")
    }
    assert heads["2.7"] == heads["2.11"] == ["cellular", "longest", "bucket"]
    assert heads["2.8"] == ["width 1", "width 10", "width 40"]
    assert heads["2.13"] == ["one size", "two sizes", "longest", "bucket"]
    assert heads["2.14"] == heads["2.15"] == ["cellular", "per operator", "per cell"]
    assert [point.at["contender"] for point in panel(small("batchmaker-fig2.15"), "all at once").points] == [
        "cell. 1,024",
        "per operator",
        "per cell",
    ]
    rivals = panel(small("batchmaker-fig2.15", "paper"), "Fig. 2.15: peaks").points
    assert [point.at["contender"] for point in rivals] == ["cellular", "DyNet", "Fold"]
    assert [one.title for one in small("batchmaker-fig2.13").panels if "peaks" not in one.title] == [
        "Fig. 2.13: 1 worker",
        "Fig. 2.13: 2 workers",
        "Fig. 2.13: 1 worker, which cells go first",
    ]
    assert [one.title for one in small("batchmaker-fig2.7").panels if "peaks" not in one.title] == [
        "Fig. 2.7a: each with its best largest batch",
        "Fig. 2.7b: batches of up to 16",
    ]
    queueing, computing = (one.points for one in small("batchmaker-fig2.9").panels)
    assert [point.at["percent"] for point in queueing] == [50, 90, 99] == [p.at["percent"] for p in computing]
    for one in (*queueing, *computing):
        assert {"cellular_ms", "longest_ms", "bucket_ms"} < {*one.measured}
    assert [point.paper for point in queueing] == [{}, {}, {"cellular": 1.38, "baseline": 100.0}]
    shares = {p.at["contender"]: p.measured["share"] for p in panel(small("batchmaker-fig2.15"), "ideal").points}
    assert shares["ideal"] == 1.0
    assert 0 < number(shares["cellular"]) < 1


def test_virtual_time_is_the_same_every_time_and_has_a_device_for_each_worker() -> None:
    finding = small("batchmaker-fig2.13", "paper")
    assert (finding.facts["clock"], finding.facts["hardware"]) == ("virtual", "v100, fitted")
    small.cache_clear()
    again = small("batchmaker-fig2.13", "paper")
    assert again.panels == finding.panels
    peaks = {
        workers: panel(finding, f"peaks, {workers}").points[0].measured["peak"]
        for workers in ("2 workers", "4 workers")
    }
    assert number(peaks["4 workers"]) >= number(peaks["2 workers"])
    assert all("fitted" in small(name, "paper").notes[0] for name in ("batchmaker-fig2.9", "batchmaker-fig2.15"))


def test_the_share_of_the_ideal_is_judged_round_by_round() -> None:
    judged = Ideal((90.0, 60.0), (100.0, 75.0)).judged("The share", paper.NEAR_11)
    assert judged == "The share: undecided: 85.0% (80.0% to 90.0%) (thesis: 87.0%, within 5 points)."


def test_in_real_time_the_ideal_takes_turns_with_cellular_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(Conditions(scale="quick", rounds=2), "lstm")
    turns: list[str] = []

    def run(setting: Setting, *given: Any) -> dict[str, float]:
        turns.append("cellular")
        return {"throughput": 30.0}

    def seconds() -> float:
        turns.append("ideal")
        return 0.1

    monkeypatch.setattr(Setting, "run", run)
    load = Load("wmt15", {"cellular": Curve(CELLULAR, 16)}, {})
    assert against_ideal(setting, load, 4, seconds) == Ideal((30.0, 30.0), (40.0, 40.0))
    assert turns == ["cellular", "ideal", "ideal", "cellular"]
