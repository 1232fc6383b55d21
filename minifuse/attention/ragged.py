"""The ragged batch of a plan: the queries of each sequence, and where its KV lies (Pensieve, 3.4.4)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.rows import BatchRows
from minifuse.kernels.ragged import Ragged
from minifuse.layout import Rectangle, Region
from minifuse.place import Extent, Pages, Place
from minifuse.plan import Plan
from minifuse.work import Span

__all__ = ["first_columns", "ragged", "tables_of"]


def ragged(plan: Plan, rows: BatchRows, span: Span, device: torch.device) -> Ragged:
    """The sequences of one wave of a plan: its work, or all rows of a shape that is computed whole.

    For work [a: 0..3) in blocks (4, 7), [b: 7..8) in blocks (2, 5, 1): cu_seqlens [0, 3, 4], contexts [3, 8], and block
    tables [[4, 7, -1], [2, 5, 1]].
    """

    def tensor(numbers: list[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    shape, first = plan.shape, None
    tables: list[tuple[int, ...]]
    if isinstance(shape, Rectangle):
        columns = shape.stop - shape.start
        queries, contexts = [columns] * shape.rows, [shape.stop] * shape.rows
        tables, page = [(shape.slot(row, 0),) for row in range(shape.rows)], 0
        first = tensor(first_columns(plan, shape))
    elif isinstance(shape, Region):
        queries, contexts = [1] * shape.size, [position + 1 for position in rows.positions]
        tables, page = [((shape.offset + row) * shape.width,) for row in range(shape.size)], 0
    else:
        work = plan.work[slice(*span)]
        queries, contexts = [item.num_tokens for item in work], [item.stop for item in work]
        tables, page = tables_of(plan.places[slice(*span)])
    widest = max(map(len, tables))
    cu_seqlens = list(accumulate(queries, initial=0))
    block_tables = [[*table, *[-1] * (widest - len(table))] for table in tables]
    return Ragged(tensor(cu_seqlens), tensor(contexts), tensor(block_tables), page, max(queries), max(contexts), first)


def tables_of(places: tuple[Place, ...]) -> tuple[list[tuple[int, ...]], int]:
    """The block tables and the slots in a block; for sequences in consecutive slots, their first slots and 0.

    >>> tables_of((Pages((4, 7), 16),)), tables_of((Extent(40, 9),))
    (([(4, 7)], 16), ([(40,)], 0))
    """
    pages = [place for place in places if isinstance(place, Pages)]
    if pages:
        return [place.blocks for place in pages], pages[0].size
    return [(place.offset,) for place in places if isinstance(place, Extent)], 0


def first_columns(plan: Plan, rectangle: Rectangle) -> list[int]:
    """The column of a rectangle in which the tokens of each row begin; `stop`, past the last, for a finished row.

    >>> # stride 8: extents that begin at slots 2 and 8 of the rectangle lie in rows 0 and 1, from columns 2 and 0
    """
    first = [rectangle.stop] * rectangle.rows
    for offset, _ in plan.extents:
        row, padding = divmod(offset - rectangle.offset, rectangle.stride)
        first[row] = padding
    return first
