"""A rectangle whose rows change hands while it runs, and whose window of columns moves (Baton, 4.1 and 4.2).

The memory here is what Baton will stand on, in miniature: it needs no policy of its own, `iteration` fills its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from helpers import asks, make_engine
from hypothesis import Phase, given, settings

from minifuse import stages as register_module
from minifuse.batching import Iteration
from minifuse.errors import LawBroken
from minifuse.layout import Rectangle
from minifuse.memory.fixed import FixedRoom, check_proposal
from minifuse.memory.reserved import ReservedMemory
from minifuse.options import option
from minifuse.place import Extent, Runs
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.report import Ran
from minifuse.request import Request, Sequence
from minifuse.stages import KINDS, register, stages
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing import TEXTS, capacity, observe, put_through
from minifuse.testing.capacity import count_slots
from minifuse.testing.laws import of_one_run
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.work import Span, Work


class _Room(FixedRoom):
    """Tries out how wide the window will be when the last of its sequences ends."""

    def __init__(self, memory: Living) -> None:
        self.memory = memory
        self.free = memory.options.rows - len(memory.rows)
        self.newcomers: list[Sequence] = []

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if len(self.newcomers) == self.free:
            return Reason("rows-full", sequence.id, "not admitted: every row has a sequence")
        width = self.memory.width_with((*self.newcomers, sequence))
        if width > self.memory.stride:
            text = f"not admitted: the window would grow to {width} columns of {self.memory.stride}"
            return Reason("memory-full", sequence.id, text)
        self.newcomers.append(sequence)
        return None


class Living(ReservedMemory):
    """Rows of equal length; a finished row is given to a newcomer while the others go on.

    A running sequence's next token takes the column behind the window. A newcomer's prompt begins there too
    (`insert=right`), so that the others are padded after their token to its length (vector shaping, 4.1); or it ends
    there (`insert=left`), in columns that its row has free, and the window is extended on the left if it is longer
    (where vector embedding puts it, 4.2). Before that, leading columns that no sequence needs are released.

    >>> # rows 2; a: 2 tokens, b: 1. After three columns b has ended, and c: 3 tokens takes its row.
    >>> # columns        0 1 2 3 4 5 6                 0 1 2 3 4
    >>> # insert=right   a a a a . . a   insert=left   a a a a a
    >>> #                . b b c c c c                 . c c c c
    """

    name = "living"
    offers: ClassVar[frozenset[str]] = frozenset({"rectangle"})

    @dataclass(frozen=True)
    class Options:
        rows: int = option(3, "rows of the rectangle", minimum=1)
        insert: str = option("right", "where a newcomer's prompt goes", choices=("right", "left"))

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.stride = capacity // self.options.rows
        self.rows: dict[str, int] = {}
        self.columns: dict[str, list[Span]] = {}  # of each sequence, in order
        self.most: dict[str, int] = {}  # tokens of each whose KV will be written, at most
        self.begin = self.stop = 0  # the window

    def _needed(self, prompts: tuple[Request, ...]) -> int:
        """The prompts of a request may be served one after the other."""
        return self.options.rows * max(request.max_cached for request in prompts)

    def _computed(self, newcomers: tuple[Sequence, ...]) -> tuple[int, int]:
        """The columns that the next iteration computes."""
        longest = max(map(len, newcomers), default=1)
        stop = self.stop + (1 if self.options.insert == "left" and self.rows else longest)
        return stop - longest, stop

    def width_with(self, newcomers: tuple[Sequence, ...]) -> int:
        """How wide the window can grow until the last sequence ends, if no more come in."""
        _, stop = self._computed(newcomers)
        left = [newcomer.request.max_cached - len(newcomer) for newcomer in newcomers]
        left += [most - self.cached[name] - 1 for name, most in self.most.items()]
        first = [stop - len(newcomer) for newcomer in newcomers]
        return stop + max(left) - min([*first, *self._first_columns()])

    def _first_columns(self) -> list[int]:
        return [spans[0].start for spans in self.columns.values()]

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        check_proposal(proposal, self.rows)
        admit = proposal.admit
        if admit and self.width_with(admit) > self.stride:
            raise LawBroken("budget", f"the window will grow to {self.width_with(admit)} columns of {self.stride}")
        start, stop = self._computed(admit)
        if admit:
            self.begin = min([*self._first_columns(), start])
        self.extents |= self._reserve(admit)
        for work in proposal.work:
            spans = self.columns.setdefault(work.sequence, [])
            left = self.stop if spans else stop - work.num_tokens
            if spans and spans[-1].stop == left:
                spans[-1] = Span(spans[-1].start, left + 1)
            else:
                spans.append(Span(left, left + work.num_tokens))
        self.stop = stop
        rectangle = Rectangle(0, self.options.rows, self.stride, start, stop, self.begin)
        for name, spans in self.columns.items():
            self.extents[name] = rectangle.place(self.rows[name], *spans)
        return Placement(tuple(self.extents[work.sequence] for work in proposal.work), rectangle)

    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Any]:
        for newcomer, row in zip(newcomers, self._free_rows(), strict=False):
            self.rows[newcomer.id], self.most[newcomer.id] = row, newcomer.request.max_cached
        return {newcomer.id: Runs(()) for newcomer in newcomers}

    def _free_rows(self) -> list[int]:
        return [row for row in range(self.options.rows) if row not in self.rows.values()]

    def _free(self, sequence_id: str, extent: Any) -> None:
        del self.rows[sequence_id], self.columns[sequence_id], self.most[sequence_id]
        if not self.rows:
            self.begin = self.stop

    @property
    def num_used(self) -> int:
        """Every row of the window: padding, gaps and finished rows included, released columns not."""
        return self.options.rows * (self.stop - self.begin)

    @property
    def num_reserved(self) -> int:
        return self.num_used

    def check_integrity(self) -> None:
        if self.stop - self.begin > self.stride or len({*self.rows.values()}) < len(self.rows):
            raise LawBroken("conservation", f"{self.rows} share [{self.begin}, {self.stop}) of {self.stride} columns")


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory in a register of the test's own, so that it is in no other test's mixes."""
    monkeypatch.setattr(register_module, "_STAGES", {kind: dict(stages(kind)) for kind in KINDS})
    monkeypatch.setattr(capacity, "_COUNTS", dict(capacity._COUNTS))
    register(Living)
    count_slots("living")(lambda sequences, options: options.rows * max(s.request.max_cached for s in sequences))


def row_of(insert: str) -> Technique:
    options = {"memory.insert": insert, "batching.max_batch": 9}
    return replace(TECHNIQUES["static"], name=insert, batching="iteration", memory="living", options=options)


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
    put_through(TEXTS, row_of(insert), examples=6, derandomize=True)


@pytest.mark.long
@both
def test_the_laws_hold_on_many(insert: str, living: None) -> None:
    put_through(TEXTS, row_of(insert), examples=300)


def _corners(insert: str) -> Counter[str]:
    """What the plans of some scenarios have met."""
    met: Counter[str] = Counter()

    @settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(TEXTS.scenarios(row_of(insert)))
    def attempt(scenario: Any) -> None:
        case = TEXTS.case(row_of(insert), scenario)
        handed, begin = set[int](), 0
        for step in observe(case, run=case.replay({})).steps:
            plan, shape = step.plan, step.plan.shape
            assert isinstance(shape, Rectangle)
            met["released"] += begin < shape.begin < shape.start
            met["extended on the left"] += shape.begin < begin
            met["wraps around"] += shape.wraps
            begin = shape.begin
            for work, place in zip(plan.work, plan.places, strict=True):
                located = [shape.locate(slot) for slot in place.slots(0, work.stop)]
                row = located[0][0]
                others = len(plan.work) > len(plan.admitted)
                met["row handed over beside others"] += others and work.sequence in plan.admitted and row in handed
                handed.add(row)
                gaps = sum(after - column > 1 for (_, column), (_, after) in pairwise(located))
                met["gap"] += gaps == 1
                met["gaps"] += gaps > 1

    attempt()
    return met


def test_the_scenarios_reach_the_corners(living: None) -> None:
    common = {"released", "wraps around", "row handed over beside others"}
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
