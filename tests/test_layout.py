"""What a layout computes: every shape counts its tokens, and a plan without waves is one wave."""

from __future__ import annotations

from minifuse.layout import RAGGED, Layout, Rectangle, Region, StateRows
from minifuse.place import Extent
from minifuse.plan import Plan
from minifuse.work import Span, Work

WORK = (Work("a", 2, 4), Work("b", 0, 1))
PLACES = (Extent(12, 6), Extent(18, 6))


def test_a_rectangle_whose_rows_are_longer_than_what_is_computed() -> None:
    """Three rows of 8 slots from slot 10, of which columns 4 and 5 are computed."""
    rectangle = Rectangle(offset=10, rows=3, stride=8, start=4, stop=6)
    assert rectangle.num_tokens == 6
    columns = range(rectangle.start, rectangle.stop)
    assert [[rectangle.slot(row, column) for column in columns] for row in range(3)] == [[14, 15], [22, 23], [30, 31]]


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
