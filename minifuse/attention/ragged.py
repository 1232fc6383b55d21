"""The ragged batch of a plan: which queries each sequence has, and where its KV lies."""

from __future__ import annotations

import torch

from minifuse.attention.rows import Rows
from minifuse.kernels.ragged import Ragged
from minifuse.layout import Rectangle, Region
from minifuse.place import Extent, Pages, Place
from minifuse.plan import Plan
from minifuse.work import Span

__all__ = ["first_columns", "ragged", "tables_of"]


def ragged(plan: Plan, rows: Rows, span: Span, device: torch.device) -> Ragged:
    """The sequences of one wave of a plan: its work, or the rows of the shape that it computes whole."""
    shape, first = plan.shape, None
    tables: list[tuple[int, ...]]
    if isinstance(shape, Rectangle):
        columns = shape.stop - shape.start
        queries, contexts = [columns] * shape.rows, [shape.stop] * shape.rows
        tables, page = [(shape.slot(row, 0),) for row in range(shape.rows)], 0
        first = torch.tensor(first_columns(plan, shape), dtype=torch.int32, device=device)
    elif isinstance(shape, Region):
        queries, contexts = [1] * shape.size, [position + 1 for position in rows.positions]
        tables, page = [((shape.offset + row) * shape.width,) for row in range(shape.size)], 0
    else:
        work = plan.work[slice(*span)]
        queries, contexts = [item.num_tokens for item in work], [item.stop for item in work]
        tables, page = tables_of(plan.places[slice(*span)])
    ends = [0]
    for count in queries:
        ends.append(ends[-1] + count)
    widest = max(map(len, tables))
    padded = [[*table, *[-1] * (widest - len(table))] for table in tables]
    cu_seqlens, contexts_, tables_ = (
        torch.tensor(x, dtype=torch.int32, device=device) for x in (ends, contexts, padded)
    )
    return Ragged(cu_seqlens, contexts_, tables_, page, max(queries), max(contexts), first)


def tables_of(places: tuple[Place, ...]) -> tuple[list[tuple[int, ...]], int]:
    """Block tables and the slots in a block; of sequences in consecutive slots, their first slots and 0."""
    pages = [place for place in places if isinstance(place, Pages)]
    if pages:
        return [place.blocks for place in pages], pages[0].size
    return [(place.offset,) for place in places if isinstance(place, Extent)], 0


def first_columns(plan: Plan, rectangle: Rectangle) -> list[int]:
    """The column of a rectangle in which each row's tokens begin; past the last for a finished row."""
    first = [rectangle.stop] * rectangle.rows
    for offset, _ in plan.extents:
        row, padding = divmod(offset - rectangle.offset, rectangle.stride)
        first[row] = padding
    return first
