"""Makes a plan's ragged batch: each sequence's queries and KV (Pensieve, 3.4.4)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minifuse.attention.batch import BatchRows
from minifuse.attention.rectangle import view_of
from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Place, Plan, Span, Work
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.ragged import Ragged


def ragged(plan: Plan, rows: BatchRows, span: Span, device: torch.device) -> Ragged:
    """Return the queries, contexts and block tables of a wave's sequences, as kernels take them.

    Each piece of work is a sequence. If the plan computes a rectangle or a region, each of its rows is one instead,
    unless rows have gaps or wrap around (see `_rows_with_gaps`).

    For work [a: 0..3) in blocks (4, 7), [b: 7..8) in blocks (2, 5, 1): cu_seqlens [0, 3, 4], contexts [3, 8], and block
    tables [[4, 7, -1], [2, 5, 1]].
    """
    shape, first = plan.shape, None
    tables: Seq[Seq[int]]
    if isinstance(shape, Rectangle):
        view = view_of(plan, shape)
        if shape.wraps or any(len(held) > 1 for held in view.held):
            queries, contexts, tables, page = _rows_with_gaps(plan, shape, rows)
        else:
            queries, contexts = [shape.stop - shape.start] * shape.rows, [view.width] * shape.rows
            tables, page = [(shape.slot(row, shape.begin),) for row in range(shape.rows)], 0
            first = int32([held[0][0] if held else view.width for held in view.held], device)
    elif isinstance(shape, Region):
        queries, contexts = [1] * shape.size, [position + 1 for position in rows.positions]
        tables, page = [((shape.offset + row) * shape.width,) for row in range(shape.size)], 0
    else:
        queries, contexts, tables, page = contexts_of(plan.work[slice(*span)], plan.places[slice(*span)])
    widest = max(map(len, tables))
    return Ragged(
        int32(list(accumulate(queries, initial=0)), device),
        int32(contexts, device),
        int32([[*table, *[-1] * (widest - len(table))] for table in tables], device),
        page,
        max(queries),
        max(contexts),
        first,
    )


def int32(numbers: list[Any], device: torch.device) -> Tensor:
    """Return a tensor of the type that the kernels take."""
    return torch.from_numpy(np.array(numbers, np.int32)).to(device)


def contexts_of(work: Seq[Work], places: Seq[Place]) -> tuple[list[int], list[int], list[tuple[int, ...]], int]:
    """Return each piece's number of queries, context length and block table; and the block size."""
    return [item.num_tokens for item in work], [item.stop for item in work], *tables_of(places)


def tables_of(places: Seq[Place]) -> tuple[list[tuple[int, ...]], int]:
    """Return the block tables of places, and the block size.

    The table of consecutive slots is just their first slot, and the block size is 0.

    >>> tables_of((Pages((4, 7), 16),)), tables_of((Extent(40, 9),))
    (([(4, 7)], 16), ([(40,)], 0))
    """
    pages = [place for place in places if isinstance(place, Pages)]
    extents = [place for place in places if isinstance(place, Extent)]
    if max(len(pages), len(extents)) < len(places):
        raise LawBroken("layout", f"{places} are read where all lie in blocks, or all in consecutive slots")
    return ([place.blocks for place in pages], pages[0].size) if pages else ([(offset,) for offset, _ in extents], 0)


def _rows_with_gaps(
    plan: Plan, rectangle: Rectangle, rows: BatchRows
) -> tuple[list[int], list[int], list[Seq[int]], int]:
    """Return the sequences of a rectangle whose rows have gaps or wrap around.

    The kernels cannot mask a gap. So each piece of work is a sequence in blocks of one slot. The idle queries before
    and behind it are sequences, too, and attend to their own slots: all rows are computed.

    >>> # columns 3 and 4 of two rows of 8: row 0 computes token 2, after a gap, in column 3; row 1 tokens 0 and 1
    >>> # queries [1, 1, 2], contexts [3, 1, 2], tables [[0, 1, 3], [4], [11, 12]], page 1
    """
    columns = rectangle.stop - rectangle.start
    queries, contexts, tables = list[int](), list[int](), list[Seq[int]]()
    done = 0

    def add_idle(stop: int) -> None:
        for row in range(done // columns, -(-stop // columns)):
            left, right = max(done, row * columns), min(stop, (row + 1) * columns)
            slots = [rectangle.slot(row, rectangle.start + i - row * columns) for i in range(left, right)]
            queries.append(len(slots))
            contexts.append(len(slots))
            tables.append(slots)

    for first, (_, start, stop, _), place in sorted(zip(rows.starts, plan.work, plan.places, strict=True)):
        add_idle(first)
        queries.append(stop - start)
        contexts.append(stop)
        tables.append(place.slots(0, stop))
        done = first + stop - start
    add_idle(rectangle.num_tokens)
    return queries, contexts, tables, 1
