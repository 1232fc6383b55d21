"""Baton's tables and figures: the queries, the courses, the contests, and what is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from papers.figures import found

from minifuse.core.measured import Measured
from minifuse.core.plan import Extent, Layout, Move, Plan, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import FinishReason
from minifuse.core.shapes import Rectangle
from minifuse.papers import EXPERIMENTS
from minifuse.papers.baton import paper, setting
from minifuse.papers.baton.course import Course
from minifuse.papers.baton.fig6_7_8 import LESS, Compared, deepest_fall, longest_wait, straightness, verdicts
from minifuse.papers.baton.machine import fixed_costs
from minifuse.papers.baton.queries import first_set, requests_of, second_set
from minifuse.papers.baton.setting import Setting
from minifuse.papers.baton.table1_2 import claim, over
from minifuse.papers.contest import Raced
from minifuse.papers.experiment import Conditions, Say
from minifuse.simulate.cost import hardware

NAMES = ("baton-table1", "baton-table2", "baton-fig6", "baton-fig7", "baton-fig8")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few short queries of a small model, in virtual time."""
    for which, batches in (("first", (4,)), ("second", (2, 4))):
        scale = setting.SCALES[which]["paper"]  # type: ignore[index]
        small = replace(scale, model="small", lengths=1 / 100, batches=batches, queries=10)
        monkeypatch.setitem(setting.SCALES[which], "paper", small)  # type: ignore[index]


# --- the queries


def test_the_first_set_is_of_three_kinds() -> None:
    """Long in and short out, short in and long out, both short, 1:1:2."""
    queries = first_set(120, 0, 1.0)
    long_in = [query for query in queries if query.prompt >= 3600]
    long_out = [query for query in queries if query.answer >= 3600]
    assert (len(queries), len(long_in), len(long_out)) == (120, 30, 30)
    assert all(24 <= query.answer <= 400 for query in long_in)
    assert all(24 <= query.prompt <= 400 for query in long_out)
    short = [query for query in queries if query not in long_in and query not in long_out]
    assert all(24 <= length <= 400 for query in short for length in query)
    assert first_set(120, 0, 2.0) == [pytest.approx((2 * query.prompt, 2 * query.answer), abs=1) for query in queries]


def test_the_second_set_is_short() -> None:
    queries = second_set(30, 0, 1.0)
    assert len(queries) == 30
    assert all(24 <= length <= 200 for query in queries for length in query)
    assert second_set(30, 1, 1.0) != queries
    requests = requests_of(queries, 100, 0)
    assert [(len(one.prompt), one.max_new_tokens, one.arrival_s) for one in requests] == [(*q, 0.0) for q in queries]


def test_sequences_are_doubled_at_a_batch_of_four() -> None:
    of_first = Setting("first", Conditions(scale="paper"))
    once, twice = of_first.queries(8), of_first.queries(4)
    assert all(abs(two.prompt - 2 * one.prompt) <= 1 for one, two in zip(once, twice, strict=True))
    of_second = Setting("second", Conditions(scale="paper"))
    assert of_second.queries(4) == of_second.queries(8)


# --- the course of a run


AHEAD = (Move("swap_in", 0, 30, 4, source_tier="host", moment="behind"),)


def _report(at: float, begins: float, tokens: int, finished: tuple[str, ...], used: int, moves: Any = ()) -> StepReport:
    work = (Work("a", 0, 2),)
    plan = Plan(0, 0, work, (Extent(1, 8),), moves=moves, layout=Layout(shape=Rectangle(0, 2, 9, 0, 3)))
    answered = {f"s{i}": (1,) for i in range(tokens)}
    ended = dict.fromkeys(finished, FinishReason.LENGTH)
    return StepReport(plan, begins, at, answered, ended, KVUsage(used, used, 100))


@pytest.fixture
def course() -> Course:
    """1 s with 10 tokens of KV, 2 s with 40 and 1 s with 20; queries end after 3 s and after 4 s."""
    found = Course()
    found.read(_report(1.0, 0.0, 2, (), 10, moves=(Move("embed", 20, 0, 6),)))
    found.read(_report(3.0, 1.0, 2, ("a",), 40))
    found.read(_report(4.0, 3.0, 4, ("b",), 20))
    return found


def test_transfers_ahead_of_time_are_no_iterations_and_delay_none(course: Course) -> None:
    before = copy.deepcopy(course)
    course.read(replace(_report(5.0, 3.0, 0, (), 40), plan=Plan(9, 1, (), (), moves=AHEAD)))
    assert course == before
    course.read(replace(_report(6.0, 4.0, 0, (), 40), measured=Measured(exposed_s=0.5)))
    assert course.link_s == 0.5


def test_a_course(course: Course) -> None:
    assert (course.seconds, course.peak, course.mean_used) == (4.0, 40, (10 + 80 + 20) / 4)
    assert (course.idle, course.computed, course.idle_share) == (12, 18, 12 / 18)
    assert (course.insertions, course.embedded, course.cleared) == (1, 6, 1)  # column 0 of three, before the text
    assert [course.at(second) for second in (0.5, 1.5, 3.0, 4.0)] == [(0, 0, 10), (0, 2, 40), (1, 4, 20), (2, 8, 0)]


def test_what_the_figures_read_from_a_course(course: Course) -> None:
    assert longest_wait(course) == 3 / 4  # from the beginning to the end of a
    assert straightness(course) == pytest.approx(3 / 4 - 4 / 8)  # after 3 s half of the tokens are there
    assert deepest_fall(course) == 20 / 40


# --- tables and figures


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["baton-table1", "baton-table2"])
def test_tables(name: str) -> None:
    finding = found(name, scale="paper")
    panel, work, framework, _ = finding.panels
    assert work.columns != panel.columns
    assert framework.title.endswith("with a framework's fixed costs")
    others = (
        (setting.TOGETHER, setting.RELEASED, setting.BESIDE, setting.PREFETCHED)
        if name == "baton-table1"
        else (setting.EMBEDDED, setting.TO_CAP)
    )
    contenders = (*setting.VARIANTS, *others, *setting.OTHERS)
    batches = (4,) if name == "baton-table1" else (2, 4)
    assert [(p.at["batch"], p.at["contender"]) for p in panel.points] == [(b, c) for b in batches for c in contenders]
    by_name = {(p.at["batch"], p.at["contender"]): p for p in panel.points}
    published = paper.TABLE_1 if name == "baton-table1" else paper.TABLE_2
    assert all(p.paper["seconds"] == published[b].get(str(c)) for (b, c), p in by_name.items())
    measured = by_name[4, "baton-pd"].measured
    assert measured["gain"] == pytest.approx(by_name[4, "static"].measured["seconds"] / measured["seconds"])  # type: ignore[operator]
    assert measured["idle_share"] < by_name[4, "baton"].measured["idle_share"]  # type: ignore[operator]
    assert measured["copied_mb"] > 0  # type: ignore[operator]
    assert 0 < measured["apart_share"] < 1  # type: ignore[operator]
    assert by_name[4, "baton"].measured["apart_share"] == 0
    assert by_name[4, "orca"].measured["idle_share"] == 0
    slower = {(p.at["batch"], p.at["contender"]): p.measured for p in framework.points}
    assert slower[4, "static"]["iterations"] == by_name[4, "static"].measured["iterations"]
    assert slower[4, "static"]["seconds"] > by_name[4, "static"].measured["seconds"]  # type: ignore[operator]
    if name == "baton-table2":  # each batch of ten queries runs to the longest answer that there may be
        iterations = [by_name[batch, setting.TO_CAP].measured["iterations"] for batch in batches]
        assert iterations == [-(-10 // batch) * round(200 / 100) for batch in batches]
    assert any(note.startswith("baton over static, batch of 4: ") for note in finding.notes)
    assert any(note.startswith("Seconds of baton, batch of 4, with") for note in finding.notes) == (
        name == "baton-table1"
    )
    assert "Not in the paper: baton over orca, by batch: " in "".join(finding.notes)
    assert json.dumps(EXPERIMENTS[name].as_json(finding))


@pytest.mark.usefixtures("few")
def test_three_figures_show_the_same_runs() -> None:
    """All queries are completed at the end of the slowest contender, and no memory is in use then."""
    conditions = Conditions(scale="paper", rounds=1)
    for name, what in {"baton-fig6": 10, "baton-fig7": None, "baton-fig8": 0}.items():
        say = Say()
        finding = EXPERIMENTS[name].prepare(conditions)(say)
        assert say.said == (2 if name == "baton-fig6" else 0)
        assert [panel.title for panel in finding.panels] == [f"Fig. {name[-1]}: batch of {batch}" for batch in (2, 4)]
        for panel in finding.panels:
            last = panel.points[-1].measured
            if what is not None:
                assert set(last.values()) == {what}
            else:
                assert len(set(last.values())) == 1


@pytest.mark.parametrize("machine", paper.MACHINES.values())
def test_the_machines_of_a_framework_have_the_fitted_costs(machine: str) -> None:
    named = hardware(f"{machine}-framework")
    assert (named.overhead_s, named.row_s) == pytest.approx(fixed_costs(), rel=1e-3)
    bare = replace(named, overhead_s=hardware(machine).overhead_s, row_s=0.0, kv_traffic=1.0)
    assert bare == hardware(machine)


def test_fixed_costs_reproduce_the_times_of_static_batches_and_predict_others() -> None:
    """Fitted to those of 2 and 10; each batch of a framework's machine runs to the cap."""
    of_second = Setting("second", Conditions(scale="paper"))
    framework = of_second.machines()[", with a framework's fixed costs"]
    for batch, tolerance in ((2, 1e-3), (4, 0.03), (6, 0.03), (8, 0.03), (10, 1e-3)):
        course = framework.serve_queries(setting.TO_CAP, batch, framework.queries(batch))
        assert course.seconds == pytest.approx(paper.TABLE_2[batch]["static"], rel=tolerance)


def _served(*seconds: float) -> Raced[Course]:
    return Raced.of([Course([one], [1], [1], [1]) for one in seconds], lambda course: course.seconds)


def test_a_claim_is_judged_round_by_round() -> None:
    races = {8: {"baton": _served(3.0, 6.0, 4.0), "static": _served(9.0, 9.0, 8.0)}}
    text = claim(races, 8, "baton", "static", {8: {"baton": 1.0, "static": 2.0}})
    assert text == "baton over static, batch of 8: undecided: 2.00x (1.50x to 3.00x) (paper: 2.00x, within 10%)."
    assert ": undecided: not measured" in claim(races, 4, "baton", "static", {4: {"baton": 1.0, "static": 2.0}})
    assert ": below: " in claim(races, 8, "static", "baton", {8: {"baton": 2.0, "static": 1.0}})
    assert ": above: " in claim(races, 8, "baton", "static", {8: {"baton": 1.0, "static": 1.1}})
    assert over(races, "baton", "static") == {8: 2.0}


def test_courses_are_compared_round_by_round() -> None:
    races = {2: {name: _served(*((9.0, 8.0) if name == "static" else (3.0, 16.0))) for name in setting.INSERTS}}
    first, *judged = verdicts(races, [Compared("seconds", lambda course: course.seconds, LESS, "{:g}")])
    assert first.startswith("Seconds, by batch (2): static 8.5 (8 to 9); baton 9.5 (3 to 16)")
    assert judged[0] == (
        "Seconds, baton over static, by batch: undecided at 2, 1.17x (0.33x to 2.00x) (paper: less, without a number)."
    )


@pytest.mark.usefixtures("few")
def test_the_papers_numbers_are_judged_only_for_its_queries_and_its_model() -> None:
    notes = " ".join(found("baton-table2", scale="paper", requests=4).notes)
    assert "Not compared: the paper has other queries, or another model." in notes
    assert "(paper: " not in notes


def test_each_round_has_queries_of_its_own() -> None:
    of_first = Setting("first", Conditions(scale="paper"))
    assert of_first.rounds == 5
    assert of_first.queries(8, 1) == Setting("first", Conditions(scale="paper", seed=1)).queries(8)
    assert of_first.queries(8, 0) != of_first.queries(8, 1)
