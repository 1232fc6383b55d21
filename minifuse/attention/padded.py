"""Attention over a padded rectangle with a mask: batch-wise inference (Baton, 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.backend import Backend
from minifuse.attention.ragged import first_columns
from minifuse.attention.rows import BatchRows
from minifuse.errors import LawBroken
from minifuse.layout import Rectangle
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan
from minifuse.work import Span

__all__ = ["PaddedAttention"]


@dataclass(frozen=True, slots=True)
class _Rectangle:
    rows: int
    columns: int
    keys: tuple[Tensor, ...]  # per layer a view [rows, num_kv_heads, stop, head_dim] of the columns so far
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, columns, stop], added to the scores


class PaddedAttention(Backend):
    """The columns [start, stop) of every row of the plan's rectangle, computed whole: T = rows x (stop - start).

    Prompts of 1 and 3 tokens are two rows of three columns. Row 0 begins with two idle tokens: their queries attend
    only to themselves, and the real query attends to neither.

        row 0:  . . a     mask of 'a': [0, 0, 1]
        row 1:  x y z     mask of 'z': [1, 1, 1]
    """

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        rectangle = plan.shape
        if not isinstance(rectangle, Rectangle):
            raise LawBroken("layout", "the padded layout got a plan without a rectangle")
        first = first_columns(plan, rectangle)
        keys, values = cache.rows_of(rectangle.offset, rectangle.rows, rectangle.stride, rectangle.stop)
        mask = _mask(first, rectangle.start, rectangle.stop, cache.keys.dtype, cache.device)
        return _Rectangle(rectangle.rows, rectangle.stop - rectangle.start, keys, values, mask)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: _Rectangle) -> Tensor:
        _, num_heads, head_dim = q.shape
        num_kv_heads = cache.num_kv_heads
        group = num_heads // num_kv_heads
        if reads.columns == 1:
            # A decode step: query heads that share a KV head are the rows of one product, [rows, kv heads, group, dim].
            attended = scaled_dot_product_attention(
                q.view(reads.rows, num_kv_heads, group, head_dim),
                reads.keys[layer],
                reads.values[layer],
                attn_mask=reads.mask,
            )
            return attended.view(reads.rows, -1)
        attended = scaled_dot_product_attention(
            q.unflatten(0, (reads.rows, reads.columns)).transpose(1, 2),
            reads.keys[layer],
            reads.values[layer],
            attn_mask=reads.mask,
            enable_gqa=group > 1,
        )  # [rows, num_heads, columns, head_dim]
        return attended.transpose(1, 2).reshape(reads.rows * reads.columns, -1)


def _mask(first_column: list[int], start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each query of columns [start, stop) attends to, as 0 or -inf: [rows, 1, columns, stop].

    A query in column c of a row whose tokens begin in column f attends to columns [f, c], and always to itself: an idle
    query with nothing to attend to would be a softmax over an empty set, which is NaN.

    >>> _mask([1], 0, 2, torch.float32, torch.device("cpu"))  # column 0 is idle
    tensor([[[[0., -inf],
              [-inf, 0.]]]])
    """
    keys = torch.arange(stop, device=device)
    queries = keys[start:, None]  # [columns, 1]
    first = torch.tensor(first_column, device=device)[:, None, None]  # [rows, 1, 1]
    visible = ((keys >= first) & (keys <= queries)) | (keys == queries)
    return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, float("-inf")).unsqueeze(1)
