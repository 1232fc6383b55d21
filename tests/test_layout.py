"""What a layout computes: every shape counts its tokens, and a plan without waves is one wave."""

from __future__ import annotations

import pytest
from helpers import breach

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages, Runs, extents_of, runs_of
from minifuse.core.plan import RAGGED, Extent, Layout, Plan, Span, Work
from minifuse.core.shapes import Rectangle, Region, StateRows

WORK = (Work("a", 2, 4), Work("b", 0, 1))
PLACES = (Extent(12, 6), Extent(18, 6))


def test_a_rectangle_whose_rows_are_longer_than_what_is_computed() -> None:
    """Three rows of 8 slots from slot 10, of which columns 4 and 5 are computed."""
    rectangle = Rectangle(offset=10, rows=3, stride=8, start=4, stop=6)
    assert rectangle.num_tokens == 6
    columns = range(rectangle.start, rectangle.stop)
    assert [[rectangle.slot(row, column) for column in columns] for row in range(3)] == [[14, 15], [22, 23], [30, 31]]


def test_the_window_of_a_rectangle_moves_over_rows_that_are_rings() -> None:
    """Columns 0 to 4 are released, 8 and 9 take the slots of 0 and 1; then column 4 and 3 come back on the left."""
    window = Rectangle(offset=10, rows=2, stride=8, start=9, stop=10, begin=5)
    assert [window.slot(1, column) for column in range(5, 10)] == [23, 24, 25, 18, 19]
    assert [window.locate(slot) for slot in (23, 25, 18, 19)] == [(1, 5), (1, 7), (1, 8), (1, 9)]
    assert window.wraps
    for slot in (9, 26, 22, 20):  # before the first row, after the last, in a released column, in one not yet used
        with breach("layout", "not in the window"):
            window.locate(slot)
    extended = window._replace(begin=3, start=3)
    assert extended.num_tokens == 14
    assert extended.locate(21) == (1, 3)
    assert not window._replace(begin=2, stop=8).wraps
    assert window._replace(begin=-2, stop=2).locate(17) == (0, -1)
    with pytest.raises(LawBroken):
        window._replace(begin=-2, stop=2).locate(12)


def test_the_place_of_columns() -> None:
    rectangle = Rectangle(offset=10, rows=2, stride=8, start=9, stop=10, begin=5)
    assert rectangle.place(0, Span(5, 8)) == Extent(15, 3)
    assert rectangle.place(1, Span(5, 10)) == Runs(((23, 3), (18, 2)))
    assert rectangle.place(1, Span(5, 6), Span(7, 8)) == Runs(((23, 1), (25, 1)))
    assert rectangle.place(1, Span(5, 6), Span(7, 9), Span(9, 10)).slots(0, 4) == [23, 25, 18, 19]


def test_runs_are_filled_one_after_the_other() -> None:
    place = Runs(((10, 3), (30, 1), (20, 4)))
    assert place.capacity == 8
    whole = [10, 11, 12, 30, 20, 21, 22, 23]
    for start in range(9):
        for stop in range(start, 9):
            assert place.slots(start, stop) == whole[start:stop]


def test_places_without_runs_are_refused_where_runs_are_read() -> None:
    plan = Plan(0, 0, WORK, (Extent(12, 6), Runs(((1, 2), (5, 1)))))
    assert runs_of(plan) == [((12, 6),), ((1, 2), (5, 1))]
    with pytest.raises(LawBroken, match="consecutive slots"):
        _ = extents_of(plan)
    with breach("layout", "runs of slots"):
        runs_of(Plan(0, 0, WORK, (Extent(12, 6), Pages((1, 2), 3))))


def test_a_region_computes_one_token_in_each_buffer() -> None:
    assert Region(offset=2, size=3, width=8).num_tokens == 3


def test_state_rows_compute_a_node_in_each_row_at_each_step() -> None:
    """BatchMaker, 2.2.3: chains of 2, 3 and 5 nodes need 10 of the 15."""
    assert StateRows(offset=0, rows=3, steps=5).num_tokens == 15


def test_a_ragged_plan_computes_its_work_and_nothing_else() -> None:
    plan = Plan(0, 0, WORK, PLACES)
    assert plan.layout is RAGGED
    assert (plan.shape, plan.layout.lanes) == (None, ())
    assert (plan.num_tokens, plan.num_computed, plan.num_idle) == (3, 3, 0)


def test_what_a_shape_computes_beyond_the_work_is_idle() -> None:
    plan = Plan(0, 0, WORK, PLACES, layout=Layout(shape=Rectangle(10, 3, 6, 2, 4)))
    assert plan.shape == Rectangle(10, 3, 6, 2, 4)
    assert (plan.num_tokens, plan.num_computed, plan.num_idle) == (3, 6, 3)


def test_a_layout_without_waves_is_one_wave() -> None:
    assert Plan(0, 0, WORK, PLACES).waves == (Span(0, 2),)
    waves = (Span(0, 1), Span(1, 2))
    assert Plan(0, 0, WORK, PLACES, layout=Layout(waves)).waves == waves
