"""Sequences of any lengths side by side, and where their KV lies: what multi-token attention is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minifuse.attention.rows import Rows
from minifuse.plan import Extent, Grid, Pages, Place, Plan, Region, Span

__all__ = ["Ragged", "first_columns", "ragged", "tables_of"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """The queries of S sequences, concatenated, and the KV slots of each one's context (Pensieve, 3.4.4).

    Sequence s has the query rows [cu_seqlens[s], cu_seqlens[s + 1]). They are the last tokens of its context of
    `contexts[s]` tokens, and each of them sees itself and what comes before it. Token t of the context lies in slot
    `tables[s, t // page] * page + t % page`; or, with `page` 0, in slot `tables[s, 0] + t`: the sequence is contiguous.

    >>> # a decodes its 6th token, b prefills 3; blocks of 4 slots, a's in 7 and 2, b's in 5:
    >>> # cu_seqlens [0, 1, 4], contexts [6, 3], tables [[7, 2], [5, -1]], page 4
    >>> # row 0 sees a's tokens 0..5 in slots 28..31, 8, 9; rows 1, 2, 3 see b's first 1, 2, 3 tokens, in slots 20..22

    A row of a padded rectangle is a sequence too, whose context begins with columns that hold nothing: with `first`, a
    query in column c sees the columns [first[s], c], and always itself.
    """

    cu_seqlens: Tensor  # [S + 1] int32, exclusive prefix sum of the numbers of queries
    contexts: Tensor  # [S] int32, tokens up to and including the last query
    tables: Tensor  # [S, columns] int32, block numbers; page 0: [S, 1], first slots. Unused entries are -1
    page: int  # slots in a block, 0: contiguous
    max_queries: int  # of one sequence
    max_context: int
    first: Tensor | None = None  # [S] int32


def ragged(plan: Plan, rows: Rows, span: Span, device: torch.device) -> Ragged:
    """The sequences of one wave of a plan: its work, or the rows of the shape that it computes whole."""
    grid, first = plan.grid, None
    tables: list[tuple[int, ...]]
    if isinstance(grid, Grid):
        columns = grid.stop - grid.start
        queries, contexts = [columns] * grid.rows, [grid.stop] * grid.rows
        tables, page = [(grid.offset + row * grid.width,) for row in range(grid.rows)], 0
        first = torch.tensor(first_columns(plan, grid), dtype=torch.int32, device=device)
    elif isinstance(grid, Region):
        queries, contexts = [1] * grid.size, [position + 1 for position in rows.positions]
        tables, page = [((grid.offset + row) * grid.width,) for row in range(grid.size)], 0
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


def first_columns(plan: Plan, grid: Grid) -> list[int]:
    """The column of a rectangle in which each row's tokens begin; past the last for a finished row."""
    first = [grid.stop] * grid.rows
    for offset, _ in plan.extents:
        row, padding = divmod(offset - grid.offset, grid.width)
        first[row] = padding
    return first
