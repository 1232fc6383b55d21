"""Attends all sequences at once with torch's operators and hardly any padding (Pensieve, 3.4.4).

This is multi-token attention: it computes the batches that `minifuse.kernels.ragged.Ragged` describes, without a
kernel. Prefills, chunks and decode steps are one case: the last tokens of a context, each of which attends to itself
and all tokens before it. Sequences with equal numbers of queries and contexts of similar length form a group, which is
computed as two batched matrix products over gathered rows. A long prefill is split into several such sequences, since a
block of its queries is again the last tokens of a context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

BLOCK = 128  # queries of a piece: enough for a matrix product, few enough to skip tokens that none of them attends to
# A group may read at most WASTE * (tokens of its contexts) + SLACK / (queries of a piece) tokens.
WASTE = 1.1
SLACK = 128  # costs about as much as one more group in a decode step
ELEMENTS = 2**19  # limit for an intermediate tensor (scores or gathered keys), so that it stays in the cache
HEAD_DIM = 64  # assumed only to count ELEMENTS
FEW = 4  # rows of scores up to which a weighted sum of values in place is faster than a gather and a product


class _Piece(NamedTuple):
    """Holds up to BLOCK queries of one sequence."""

    num_queries: int
    context: int  # tokens that the last query attends to
    row: int  # the row of the first query in the batch
    elements: int  # size of its largest intermediate tensor
    table: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Group:
    """Units attended together: each is one KV head of a piece, with its query heads.

    Contexts are aligned at the right, so that one mask `future` fits all units. For two pieces of 2 queries, with
    contexts of 4 and 3 tokens and one head:

        kv  a0 a1 a2 a3     idle  . . . .     future  . . . x     (of both)
            b0 b0 b1 b2           x . . .             . . . .

    Padding repeats a slot of the same sequence, so that a NaN in another sequence's slot is never read.
    """

    queries: Tensor  # [units * rows], rows of q seen as [T * num_heads, head_dim]; rows = queries * heads per KV head
    kv: Tensor  # [units, width], rows of keys and values seen as [slots * num_kv_heads, head_dim]
    idle: Tensor | None  # [units, 1, width], True: before the context begins; None: no unit has padding
    future: Tensor | None  # [rows, num_queries], True: this token comes after the query; None: one query


@dataclass(frozen=True, slots=True)
class RaggedIndex:
    """The rows of a wave's queries, keys and values, computed once for all layers.

    For S sequences of up to BLOCK queries each, attention reads at most WASTE * contexts + SLACK * S tokens of KV.
    """

    groups: tuple[_Group, ...]
    order: Tensor  # [T * num_heads], output row -> its row in the joined outputs of all groups

    @classmethod
    def of(
        cls,
        num_queries: Sequence[int],
        contexts: Sequence[int],
        tables: Sequence[Sequence[int]],
        page: int,
        num_heads: int,
        num_kv_heads: int,
        device: torch.device,
    ) -> RaggedIndex:
        """Index S sequences, whose queries lie in the batch in this order.

        Args:
            num_queries: number of queries of each sequence: the last tokens of its context.
            contexts: context length of each sequence, the last query included.
            tables: block table of each sequence, with enough blocks for its context. If `page` is 0, [its first slot].
            page: slots per block: token t lies in slot `table[t // page] * page + t % page`. 0: consecutive slots.
        """
        pieces, row = [], 0
        for count, context, table in zip(num_queries, contexts, tables, strict=True):
            for start in range(0, count, BLOCK):
                stop = min(start + BLOCK, count)
                visible = context - count + stop
                elements = visible * max((stop - start) * num_heads, num_kv_heads * HEAD_DIM)
                pieces.append(_Piece(stop - start, visible, row + start, elements, table))
            row += count
        groups = [group for alike in _alike(pieces) for group in _groups(alike, page, num_heads, num_kv_heads, device)]
        order = torch.empty(row * num_heads, dtype=torch.long, device=device)
        if groups:
            order[torch.cat([group.queries for group in groups])] = torch.arange(row * num_heads, device=device)
        return cls(tuple(groups), order)


def attend(q: Tensor, keys: Tensor, values: Tensor, index: RaggedIndex) -> Tensor:
    """Compute softmax(q k^T / sqrt(head_dim)) v for every query.

    Scores are float32 for 16-bit tensors, as in a fused kernel. Otherwise, they have the type of the tensors.

    Args:
        q: [T, num_heads, head_dim], contiguous.
        keys, values: [slots, num_kv_heads, head_dim], contiguous; the queries' own tokens are already there.
        index: where these T queries and their contexts are.

    Returns:
        [T, num_heads * head_dim].
    """
    num_tokens, num_heads, head_dim = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    q = (q.to(wide) * head_dim**-0.5).view(-1, head_dim)
    keys, values = keys.view(-1, head_dim), values.view(-1, head_dim)
    outputs = [values[:0]]
    for group in index.groups:
        units, width = group.kv.shape
        gathered = keys.index_select(0, group.kv.view(-1)).view(units, width, head_dim)
        queries = q.index_select(0, group.queries).view(units, -1, head_dim)
        scores = torch.bmm(queries, gathered.to(wide).transpose(1, 2))  # [units, rows, width]
        if group.idle is not None:
            scores.masked_fill_(group.idle, -math.inf)
        if group.future is not None:
            scores[..., -group.future.shape[1] :].masked_fill_(group.future, -math.inf)
        weights = scores.softmax(-1).to(values.dtype)
        rows = weights.shape[1]
        if rows <= FEW:
            bags = group.kv[:, None].expand(-1, rows, -1).reshape(-1, width)
            outputs.append(embedding_bag(bags, values, mode="sum", per_sample_weights=weights.view(-1, width)))
        else:
            gathered = values.index_select(0, group.kv.view(-1)).view(units, width, head_dim)
            outputs.append(torch.bmm(weights, gathered).view(-1, head_dim))
    return torch.cat(outputs).index_select(0, index.order).view(num_tokens, num_heads * head_dim)


def _alike(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Yield groups of pieces with equally many queries, within WASTE, SLACK and ELEMENTS."""
    group: list[_Piece] = []
    tokens = 0
    for piece in sorted(pieces, reverse=True):
        if group:
            first = group[0]
            padded = first.context * (len(group) + 1)
            allowed = WASTE * (tokens + piece.context) + SLACK // first.num_queries
            full = first.elements * (len(group) + 1) > ELEMENTS
            if piece.num_queries != first.num_queries or padded > allowed or full:
                yield group
                group, tokens = [], 0
        group.append(piece)
        tokens += piece.context
    if group:
        yield group


def _groups(
    pieces: list[_Piece], page: int, num_heads: int, num_kv_heads: int, device: torch.device
) -> Iterator[_Group]:
    """Index pieces as one group, or as several to keep each tensor within ELEMENTS.

    A unit is never divided.

    >>> # block size 4, one head, contexts 4 and 3 in block tables [2] and [5]: kv is [[8, 9, 10, 11], [20, 20, 21, 22]]
    """
    num_queries, width = pieces[0].num_queries, pieces[0].context
    blocks = -(-width // page) if page else 1
    tables = torch.tensor([[*piece.table[:blocks], *[0] * (blocks - len(piece.table))] for piece in pieces])
    absent = width - torch.tensor([piece.context for piece in pieces])[:, None]  # [pieces, 1]
    tokens = (torch.arange(width) - absent).clamp_(min=0)  # [pieces, width]
    slots = tables.gather(1, tokens // page) * page + tokens % page if page else tables + tokens
    heads = torch.arange(num_kv_heads)[:, None]
    kv = slots[:, None] * num_kv_heads + heads  # [pieces, num_kv_heads, width]
    rows = torch.tensor([piece.row for piece in pieces])[:, None] + torch.arange(num_queries)
    together = num_heads // num_kv_heads  # query heads that share a KV head
    queries = (rows[:, None] * num_heads + heads * together)[..., None] + torch.arange(together)
    kv, queries = kv.flatten(0, 1).to(device), queries.flatten(0, 1).flatten(1).to(device)  # a row for each unit
    idle = future = None
    if absent.any():
        idle = (torch.arange(width) < absent).repeat_interleave(num_kv_heads, 0)[:, None].to(device)
    if num_queries > 1:
        future = torch.ones(num_queries, num_queries, dtype=torch.bool, device=device).triu(1)
        future = future.repeat_interleave(together, 0)
    most = max(1, ELEMENTS // (width * max(queries.shape[1], HEAD_DIM)))
    for start in range(0, len(kv), most):
        part = slice(start, start + most)
        yield _Group(queries[part].flatten(), kv[part], None if idle is None else idle[part], future)
