"""A rectangle whose rows change hands while it runs, and whose window of columns moves (Baton, 4.1 and 4.2)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from conformance.defects.harness import MIXES, Defect, caught
from helpers import asks, make_engine
from hypothesis import Phase, given, settings
from living import Living, register_living, row_of

from minifuse.attention import padded
from minifuse.batching import Iteration
from minifuse.errors import LawBroken
from minifuse.layout import Rectangle
from minifuse.place import Extent, Runs
from minifuse.plan import Plan, Proposal
from minifuse.report import Ran
from minifuse.request import Request, Sequence
from minifuse.techniques import TECHNIQUES
from minifuse.testing import TEXTS, observe, put_through
from minifuse.testing.laws import of_one_run
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.work import Work


@pytest.fixture
def living(own_register: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register_living()
    for insert in ("right", "left"):
        monkeypatch.setitem(MIXES["transformer"], insert, row_of(insert))


both = pytest.mark.parametrize("insert", ["right", "left"])


# --- by hand


def _run(insert: str, capacity: int, *requests: Request) -> list[Plan]:
    memory = Living(capacity, Living.Options(2, insert))
    engine = make_engine("static", batching=Iteration(), memory=memory)
    for request in requests:
        engine.submit(request)
    return [step.plan for step in engine.run()]


def test_a_newcomer_takes_a_finished_row_by_vector_shaping() -> None:
    """The example of `Living`: a's token is padded to the length of c, and lies beside a gap from then on."""
    plans = _run("right", 16, asks("a", 2, 4), asks("b", 1, 2), asks("c", 3, 2))
    assert [plan.shape for plan in plans] == [
        Rectangle(0, 2, 8, 0, 2),
        Rectangle(0, 2, 8, 2, 3),
        Rectangle(0, 2, 8, 3, 6),
        Rectangle(0, 2, 8, 6, 7),
    ]
    assert [plan.work for plan in plans[2:]] == [
        (Work("a", 3, 4), Work("c", 0, 3)),
        (Work("a", 4, 5), Work("c", 3, 4)),
    ]
    assert [plan.places for plan in plans[2:]] == [
        (Extent(0, 4), Extent(11, 3)),
        (Runs(((0, 4), (6, 1))), Extent(11, 4)),
    ]
    assert [plan.num_idle for plan in plans] == [1, 0, 2, 0]


def test_a_newcomer_ends_in_the_column_of_the_others_token() -> None:
    """The same on the left: no gap. d is longer than the window, which is extended before its first column."""
    plans = _run("left", 20, asks("a", 2, 6), asks("b", 1, 2), asks("c", 3, 2), asks("d", 7, 1))
    assert [plan.shape for plan in plans] == [
        Rectangle(0, 2, 10, 0, 2),
        Rectangle(0, 2, 10, 2, 3),
        Rectangle(0, 2, 10, 1, 4),
        Rectangle(0, 2, 10, 4, 5),
        Rectangle(0, 2, 10, -1, 6, begin=-1),
        Rectangle(0, 2, 10, 6, 7, begin=-1),
    ]
    assert plans[2].places == (Extent(0, 4), Extent(11, 3))
    assert plans[4].places == (Extent(0, 6), Runs(((19, 1), (10, 6))))
    assert plans[4].num_idle == 6


def test_released_columns_are_free_and_are_used_again() -> None:
    """b and c hand on to each other; what a had is released when c comes in, and c's text wraps around."""
    engine_plans = _run("right", 16, asks("a", 4, 2), asks("b", 1, 4), asks("c", 2, 3))
    shapes = [plan.shape for plan in engine_plans]
    assert shapes == [
        Rectangle(0, 2, 8, 0, 4),
        Rectangle(0, 2, 8, 4, 5),
        Rectangle(0, 2, 8, 5, 7, begin=3),
        Rectangle(0, 2, 8, 7, 8, begin=3),
        Rectangle(0, 2, 8, 8, 9, begin=3),
    ]
    assert engine_plans[4].places == (Runs(((5, 3), (0, 1))),)


@both
def test_a_newcomer_waits_until_the_window_can_reach_the_end_of_every_answer(insert: str) -> None:
    memory = Living(16, Living.Options(2, insert))
    a, b = Sequence(asks("a", 3, 4)), Sequence(asks("b", 6, 3))
    room = memory.room()
    assert room.admit(a) is None
    reason = room.admit(b)
    assert reason is not None
    assert (reason.code, memory.rows) == ("memory-full", {})
    with pytest.raises(LawBroken, match="grow to 9 columns of 8"):
        memory.place(Proposal((Work("a", 0, 3), Work("b", 0, 6)), (a, b)), 0.0)
    assert memory.usage().reserved == 0


# --- under the laws


@both
def test_the_laws_hold(insert: str, living: None) -> None:
    put_through(TEXTS, row_of(insert), examples=3, derandomize=True)


@pytest.mark.long
@both
def test_the_laws_hold_on_many(insert: str, living: None) -> None:
    put_through(TEXTS, row_of(insert), examples=300)


def _corners(insert: str) -> Counter[str]:
    """What the plans of some scenarios have met."""
    met: Counter[str] = Counter()

    @settings(max_examples=100, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(TEXTS.scenarios(row_of(insert)))
    def attempt(scenario: Any) -> None:
        case = TEXTS.case(row_of(insert), scenario)
        handed, begin = set[int](), 0
        for step in observe(case, run=case.replay({})).steps:
            plan, shape = step.plan, step.plan.shape
            assert isinstance(shape, Rectangle)
            others = len(plan.work) > len(plan.admitted)
            met["released beside others"] += others and begin < shape.begin
            met["extended on the left"] += shape.begin < begin
            met["wraps around"] += shape.wraps
            begin = shape.begin
            for work, place in zip(plan.work, plan.places, strict=True):
                located = [shape.locate(slot) for slot in place.slots(0, work.stop)]
                row = located[0][0]
                met["row handed over beside others"] += others and work.sequence in plan.admitted and row in handed
                handed.add(row)
                gaps = sum(after - column > 1 for (_, column), (_, after) in pairwise(located))
                met["gap"] += gaps == 1
                met["gaps"] += gaps > 1

    attempt()
    return met


def test_the_scenarios_reach_the_corners(living: None) -> None:
    common = {"released beside others", "wraps around", "row handed over beside others"}
    assert {name for name, count in _corners("right").items() if count} == {*common, "gap", "gaps"}
    assert {name for name, count in _corners("left").items() if count} == {*common, "extended on the left"}


# --- what a mask leaves out cannot do harm


class _Spoiling(GhostRunner):
    """Puts NaN into every slot before the first plan, and into a row when its sequence has ended."""

    rows: ClassVar[dict[str, range]] = {}

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        shape = plan.shape
        assert isinstance(shape, Rectangle)
        if plan.step == 0:
            self.rows = {}
            self._spoil(range(self.cache.keys.shape[1]))
        for work, place in zip(plan.work, plan.places, strict=True):
            row, _ = shape.locate(place.slots(0, 1)[0])
            self.rows[work.sequence] = range(row * shape.stride, (row + 1) * shape.stride)
        for name in self.rows.keys() - {work.sequence for work in plan.work}:
            self._spoil(self.rows.pop(name))
        return super().__call__(plan, sequences)

    def _spoil(self, slots: range) -> None:
        for cache in (self.cache, self.ghost):
            cache.keys[:, slots] = cache.values[:, slots] = math.nan


@pytest.mark.parametrize("insert", ["right", "left", "static"])
@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_nan_in_what_is_masked_changes_nothing(insert: str, numerics: str, living: None) -> None:
    """Padding, gaps, columns that come into the window, and what the sequence before has left in a row."""
    row = TECHNIQUES["static"] if insert == "static" else row_of(insert)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(TEXTS.scenarios(row))
    def attempt(scenario: Any) -> None:
        case = TEXTS.case(row, scenario)
        runner = case.runner(numerics)
        of_one_run(case, observe(case, run=_Spoiling(runner.model, runner.cache, runner.attention)))

    attempt()


# --- defects, and the law that names each


def _seeing_gaps(patch: pytest.MonkeyPatch) -> None:
    """The mask is a sequence's first column, as if the row had no gap behind it."""
    view_of = padded.view_of

    def wrong(*arguments: Any) -> Any:
        view = view_of(*arguments)
        whole = [[(min(held)[0], max(held)[1])] if held else [] for held in view.held]
        return view._replace(held=whole)

    patch.setattr(padded, "view_of", wrong)


def _releasing_too_much(patch: pytest.MonkeyPatch) -> None:
    """The column behind the released ones is released too, and read by the sequence that begins there."""
    first = Living._first_columns
    patch.setattr(Living, "_first_columns", lambda self: [column + 1 for column in first(self)])


def _giving_rows_away(patch: pytest.MonkeyPatch) -> None:
    """A row counts as free as soon as its sequence is in its last iteration but one."""
    patch.setattr(Living, "check_integrity", lambda self: None)
    free_rows = Living._free_rows

    def wrong(self: Living) -> list[int]:
        ending = [name for name, most in self.most.items() if self.cached[name] + 2 >= most]
        return [*(self.rows[name] for name in ending), *free_rows(self)]

    patch.setattr(Living, "_free_rows", wrong)


def _outgrowing_rows(patch: pytest.MonkeyPatch) -> None:
    """The window grows on the right until it meets its own first columns."""
    patch.setattr(Living, "check_integrity", lambda self: None)
    patch.setattr(Living, "width_with", lambda self, newcomers: 0)


def _over_another_row(patch: pytest.MonkeyPatch) -> None:
    """Rows do not wrap around: a window that is extended before their beginning takes the end of the row before."""
    patch.setattr(Rectangle, "slot", lambda self, row, column: self.offset + row * self.stride + column)


@pytest.mark.parametrize(
    ("seed", "insert", "laws"),
    [
        (_seeing_gaps, "right", ("ghost",)),
        (_releasing_too_much, "right", ("layout",)),
        (_releasing_too_much, "left", ("layout",)),
        (_giving_rows_away, "right", ("conservation",)),
        (_giving_rows_away, "left", ("conservation",)),
        (_outgrowing_rows, "right", ("layout",)),
        (_over_another_row, "left", ("conservation", "budget", "layout")),
    ],
)
def test_defects_are_caught(
    seed: Any, insert: str, laws: tuple[str, ...], living: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(monkeypatch)
    broken = caught(Defect(seed, TEXTS, insert, laws, "of_one_run", (), {}))
    assert broken is not None, "the defect went unnoticed"
    assert broken.law in laws, str(broken)
