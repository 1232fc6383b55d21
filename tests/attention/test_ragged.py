"""A plan as the ragged batch that the kernels take, by hand."""

from __future__ import annotations

import torch
from helpers import asks, breach

from minifuse.attention.backend import lay_out
from minifuse.attention.ragged import ragged
from minifuse.core.places import Pages, Runs
from minifuse.core.plan import Extent, Layout, Plan, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.ragged import Ragged

CPU = torch.device("cpu")
SEQUENCES = {"a": Sequence(asks("a", 6, 8)), "b": Sequence(asks("b", 3, 8)), "c": Sequence(asks("c", 4, 8))}


def _of(plan: Plan, span: Span | None = None) -> Ragged:
    return ragged(plan, lay_out(plan, SEQUENCES), span or Span(0, len(plan.work)), CPU)


def _lists(batch: Ragged) -> tuple[object, ...]:
    first = None if batch.first is None else batch.first.tolist()
    return batch.cu_seqlens.tolist(), batch.contexts.tolist(), batch.tables.tolist(), batch.page, first


def test_blocks() -> None:
    """The example of the docstring: a decodes its 6th token, b prefills 3."""
    plan = Plan(0, 0, (Work("a", 5, 6), Work("b", 0, 3)), (Pages((7, 2), 4), Pages((5,), 4)))
    batch = _of(plan)
    assert _lists(batch) == ([0, 1, 4], [6, 3], [[7, 2], [5, -1]], 4, None)
    assert (batch.max_queries, batch.max_context) == (3, 6)
    assert all(x.dtype == torch.int32 for x in (batch.cu_seqlens, batch.contexts, batch.tables))


def test_runs_of_the_second_wave() -> None:
    plan = Plan(0, 0, (Work("a", 5, 6), Work("b", 0, 2), Work("c", 1, 4)), (Extent(30, 9), Extent(0, 4), Extent(10, 6)))
    assert _lists(_of(plan, Span(1, 3))) == ([0, 2, 5], [2, 4], [[0], [10]], 0, None)


def test_a_rectangle_is_its_rows() -> None:
    """Rows of 7 slots from slot 2; b, padded by two, in the first, the second idle, c in the third."""
    plan = Plan(
        0,
        0,
        (Work("b", 0, 3), Work("c", 1, 4)),
        (Extent(4, 5), Extent(16, 7)),
        layout=Layout(shape=Rectangle(2, 3, 7, 1, 5)),
    )
    batch = _of(plan)
    assert _lists(batch) == ([0, 4, 8, 12], [5, 5, 5], [[2], [9], [16]], 0, [2, 5, 0])
    assert (batch.max_queries, batch.max_context) == (4, 5)


def test_a_rectangle_with_gaps_is_its_pieces_of_work_in_blocks_of_one_slot() -> None:
    """Columns 5 to 8: b computes its third token, after a gap; c a prompt that goes on at the beginning of its row.

    The idle queries beside b, and the row in between that has ended, attend to slots of their own.
    """
    rectangle = Rectangle(2, 3, 8, start=5, stop=9, begin=2)
    plan = Plan(
        0,
        0,
        (Work("c", 0, 4), Work("b", 2, 3)),
        (rectangle.place(2, Span(5, 9)), rectangle.place(0, Span(2, 4), Span(6, 7))),
        layout=Layout(shape=rectangle),
    )
    idle, b, c = [7], [4, 5, 8], [23, 24, 25, 18]
    rows = ([0, 1, 2, 4, 8, 12], [1, 3, 2, 4, 4])
    tables = [idle, b, [9, 2], [15, 16, 17, 10], c]
    assert _lists(_of(plan)) == (*rows, [[*table, *[-1] * (4 - len(table))] for table in tables], 1, None)


def test_the_window_of_a_rectangle_without_gaps_is_read_from_its_first_column() -> None:
    rectangle = Rectangle(0, 2, 8, start=6, stop=8, begin=3)
    plan = Plan(0, 0, (Work("b", 2, 3),), (rectangle.place(1, Span(5, 8)),), layout=Layout(shape=rectangle))
    assert _lists(_of(plan)) == ([0, 2, 4], [5, 5], [[3], [11]], 0, [5, 2])


def test_runs_with_gaps_are_refused_outside_a_rectangle() -> None:
    with breach("layout", "consecutive slots"):
        _of(Plan(0, 0, (Work("b", 2, 3), Work("c", 0, 1)), (Runs(((3, 2), (8, 1))), Extent(20, 4))))


def test_adjacent_buffers_are_sequences_of_one_query() -> None:
    """Buffers of 8 slots; the region [1, 4) holds a at its 6th token, an idle buffer, and b at its 3rd."""
    plan = Plan(
        0, 0, (Work("b", 2, 3), Work("a", 5, 6)), (Extent(24, 8), Extent(8, 8)), layout=Layout(shape=Region(1, 3, 8))
    )
    assert _lists(_of(plan)) == ([0, 1, 2, 3], [6, 1, 3], [[8], [16], [24]], 0, None)
