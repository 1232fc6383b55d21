"""Pensieve's Figure 3.3: what is computed, where prefill outgrows generation, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from papers.figures import found

from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Conditions, Point
from minifuse.papers.pensieve import fig3_3 as module
from minifuse.papers.pensieve.fig3_3 import Setting, crossing
from minifuse.simulate.cost import Roofline, hardware

NAME = "pensieve-fig3.3"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of two, behind two lengths of history, on a simulated machine that waits for arithmetic."""
    scale = replace(module.SCALES["paper"], models={"small": (0, 70)}, batch=2, machine="cpu")
    monkeypatch.setitem(module.SCALES, "paper", scale)
    monkeypatch.setattr(module, "REACHED", (1.0, 1000.0))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kept", [False, True])
def test_the_times_are_those_of_the_roofline(kept: bool) -> None:
    """Of what is kept, the last token and 32 new ones are computed; otherwise all 102; then 3 steps of one token."""
    setting = Setting(Conditions(scale="paper", tokens=3), "small")
    cost = Roofline(setting.source.config, "float16", hardware("cpu"))

    def seconds(start: int, stop: int) -> float:
        return cost(Plan(0, 0, tuple(Work(name, start, stop) for name in "ab"), (Extent(0, stop), Extent(stop, stop))))

    generation = sum(seconds(at, at + 1) for at in (102, 103, 104))
    prefill = seconds(69 if kept else 0, 102)
    assert setting.run(70, kept) == pytest.approx({"prefill": prefill, "generation": generation})


@pytest.mark.usefixtures("few")
def test_the_figure() -> None:
    finding = found(NAME, scale="paper", tokens=8)
    panel, reached = finding.panels
    assert [point.at["history"] for point in panel.points] == [0, 70]
    none, some = (point.measured for point in panel.points)
    assert none["again_s"] == none["kept_s"]
    assert some["again_s"] > some["kept_s"] > none["kept_s"]  # type: ignore[operator]
    assert panel.title.startswith("Fig. 3.3, small: 2 requests")
    assert reached.title.startswith("small, not in the thesis")
    as_it_is, faster = (point.measured for point in reached.points)
    assert as_it_is["share"] == some["share"]
    assert as_it_is["share"] > 1 > faster["share"]  # type: ignore[operator]
    assert (as_it_is["crossing"], faster["crossing"]) == (finding.facts["crossings"]["random:small"], None)
    assert 0 < as_it_is["crossing"] < 70  # type: ignore[operator]
    facts = json.loads(json.dumps(EXPERIMENTS[NAME].as_json(finding)))
    assert (facts["batch"], facts["steps"], facts["hardware"]) == (2, 8, "cpu")


def _point(history: int, again: float, generation: float, kept: float = 1.0) -> Point:
    values = {"again_s": again, "kept_s": kept, "generation_s": generation, "share": again / generation}
    values |= {"again_s_rounds": (again, 5.0), "again_generation_s_rounds": (generation, 9.5)}
    return Point({"history": history}, values, {})


def test_where_prefill_outgrows_generation() -> None:
    """7 s behind before 100 tokens, 1 s ahead after 200: seven eighths of the way."""
    assert crossing([_point(0, 1.0, 9.0), _point(100, 2.0, 9.0), _point(200, 10.0, 9.0)]) == 187.5
    assert crossing([_point(0, 1.0, 9.0), _point(100, 9.0, 9.0)]) is None
    assert crossing([_point(64, 10.0, 9.0), _point(128, 20.0, 9.0)]) == 64.0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("last", "words"),
    [
        (
            (10.0, 9.0, 1.5),
            [
                "Prefill outgrows generation: undecided: from about 62 tokens of history on",
                "10.0 times as long if the history is computed again, and 1.5 times if it is kept",
                "by its data sheet",
            ],
        ),
        ((8.0, 10.0, 1.0), ["generation: does not agree: up to 70 tokens", "0.80 times as long"]),
    ],
)
def test_the_notes_tell_whether_it_is_as_in_the_thesis(
    monkeypatch: pytest.MonkeyPatch, last: tuple[float, float, float], words: list[str]
) -> None:
    points = {0: _point(0, 1.0, 9.0), 70: _point(70, *last)}
    monkeypatch.setattr(Setting, "contest", lambda self, history, first: points[history].measured)
    notes = " ".join(found(NAME, scale="paper").notes)
    assert all(one in notes for one in words)


@pytest.mark.usefixtures("few")
def test_each_model_has_its_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = replace(module.SCALES["paper"], models={"small": (0, 70), "small-opt": (0, 8)})
    monkeypatch.setitem(module.SCALES, "paper", scale)
    finding = found(NAME, scale="paper", tokens=4)
    assert [panel.title.partition(",")[0] for panel in finding.panels] == ["Fig. 3.3", "small", "Fig. 3.3", "small-opt"]
    assert list(finding.facts["crossings"]) == ["random:small", "random:small-opt"]
    assert len(found(NAME, scale="paper", tokens=4, model="random:small").panels) == 2


def test_times_begin_with_the_batchs_own_work() -> None:
    def step(names: str, start: float, stop: float, tokens: str) -> StepReport:
        work = tuple(Work(name, 0, 1) for name in names)
        plan = Plan(0, 0, work, tuple(Extent(i, 1) for i in range(len(work))))
        return StepReport(plan, start, stop, dict.fromkeys(tokens, (0,)), {}, KVUsage(0, 0, 0))

    steps = [
        step("h", 0.0, 5.0, "h"),
        step("ab", 6.0, 8.0, "ab"),
        step("ab", 8.0, 9.0, "ab"),
        step("b", 9.0, 11.0, "b"),
    ]
    assert module.times_of(steps, ["a", "b"]) == {"prefill": 2.0, "generation": 3.0}
