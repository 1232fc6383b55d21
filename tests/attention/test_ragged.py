"""A plan as the ragged batch that the kernels take, by hand."""

from __future__ import annotations

import torch
from helpers import asks

from minifuse.attention.ragged import ragged
from minifuse.attention.rows import lay_out
from minifuse.kernels.ragged import Ragged
from minifuse.layout import Layout, Rectangle, Region
from minifuse.place import Extent, Pages
from minifuse.plan import Plan
from minifuse.request import Sequence
from minifuse.work import Span, Work

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


def test_adjacent_buffers_are_sequences_of_one_query() -> None:
    """Buffers of 8 slots; the region [1, 4) holds a at its 6th token, an idle buffer, and b at its 3rd."""
    plan = Plan(
        0, 0, (Work("b", 2, 3), Work("a", 5, 6)), (Extent(24, 8), Extent(8, 8)), layout=Layout(shape=Region(1, 3, 8))
    )
    assert _lists(_of(plan)) == ([0, 1, 2, 3], [6, 1, 3], [[8], [16], [24]], 0, None)
