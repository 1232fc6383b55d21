"""Attention over a padded rectangle with a mask: batch-wise inference (Baton, 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.rectangle import View, view_of
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Rectangle
from minifuse.memory.storage import KVStorage


@dataclass(frozen=True, slots=True)
class Rows:
    """Views of adjacent rows of slots, and the mask of each query."""

    keys: tuple[Tensor, ...]  # per layer a view [rows, num_kv_heads, width, head_dim]
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, columns, width], added to the scores

    @classmethod
    def of(cls, cache: KVStorage, offset: int, stride: int, first: int, mask: Tensor) -> Rows:
        """View the slots from `first` on of rows of `stride` slots, as many as the mask has.

        >>> # offset 10, stride 4, first 0, a mask of 2 rows and 3 slots: slots 10 to 12, and slots 14 to 16
        """
        rows, _, _, width = mask.shape
        keys, values = (
            kv[:, offset : offset + rows * stride]
            .unflatten(1, (rows, stride))
            .narrow(2, first, width)
            .transpose(2, 3)
            .unbind(0)
            for kv in (cache.keys, cache.values)
        )
        return cls(keys, values, mask)

    def attend(self, q: Tensor, layer: int) -> Tensor:
        """Attend queries [rows * columns, num_heads, head_dim] to one layer: [rows * columns, num_heads * head_dim]."""
        keys, values = self.keys[layer], self.values[layer]
        rows, _, columns, _ = self.mask.shape
        num_kv_heads = keys.shape[1]
        if columns == 1:
            # A decode step: query heads that share a KV head are the rows of one product, [rows, kv heads, group, dim].
            grouped = q.unflatten(1, (num_kv_heads, -1))
            return scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask).view(rows, -1)
        heads = q.unflatten(0, (rows, columns)).transpose(1, 2)  # [rows, num_heads, columns, head_dim]
        shared = q.shape[1] > num_kv_heads
        attended = scaled_dot_product_attention(heads, keys, values, attn_mask=self.mask, enable_gqa=shared)
        return attended.transpose(1, 2).reshape(len(q), -1)


class PaddedAttention(Backend):
    """The columns [start, stop) of every row of the plan's rectangle, computed whole: T = rows x (stop - start).

    Keys and values are views of the rectangle's window; the mask leaves out what a row does not hold of its sequence.

    Prompts of 1 and 3 tokens are two rows of three columns. Row 0 begins with two idle tokens: their queries attend
    only to themselves, and the real query attends to neither.

        row 0:  . . a     mask of 'a': [0, 0, 1]
        row 1:  x y z     mask of 'z': [1, 1, 1]

    If 'p q' then takes the row of 'a', beside the next token of 'x y z', that row is padded after its token, and has a
    gap from then on (vector shaping, Baton 4.1):

        row 0:  . . . p q .     mask of the token after 'q': [0, 0, 0, 1, 1, 1]
        row 1:  x y z t . u     mask of 'u': [1, 1, 1, 1, 0, 1]
    """

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        rectangle = plan.shape
        if not isinstance(rectangle, Rectangle):
            raise LawBroken("layout", "the padded layout got a plan without a rectangle")
        view = view_of(plan, rectangle)
        mask = _mask(view, rectangle, cache.keys.dtype, cache.device)
        return Rows.of(cache, rectangle.offset, rectangle.stride, view.first, mask)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Rows) -> Tensor:
        return reads.attend(q, layer)


def _mask(view: View, rectangle: Rectangle, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each query of columns [start, stop) attends to, as 0 or -inf: [rows, 1, columns, width of the view].

    A query attends to the columns up to its own that its row holds, and always to itself: an idle query with nothing to
    attend to would be a softmax over an empty set, which is NaN.

    >>> _mask(View(0, 2, [[(1, 2)]]), Rectangle(0, 1, 2, 0, 2), torch.float32, torch.device("cpu"))  # column 0 is idle
    tensor([[[[0., -inf],
              [-inf, 0.]]]])
    """
    keys = torch.arange(view.width, device=device)
    columns, queries = keys, torch.arange(rectangle.start, rectangle.stop, device=device)[:, None]
    if rectangle.begin:  # columns are counted from `begin`, at which the view begins unless the window wraps around
        queries = queries - rectangle.begin
        columns = (keys - rectangle.begin) % rectangle.stride if rectangle.wraps else keys
    most = max(map(len, view.held))
    if most > 1 or rectangle.wraps:
        ranges = [held + [(0, 0)] * (most - len(held)) for held in view.held]
        first, last = torch.tensor(ranges, device=device)[..., None].unbind(2)  # [rows, most, 1]
        held = ((keys >= first) & (keys < last)).any(1, keepdim=True)  # [rows, 1, width]
    else:  # what a row holds goes on to its last query
        first = torch.tensor([held[0][0] if held else view.width for held in view.held], device=device)
        held = keys >= first[:, None, None]
    visible = (held & (columns <= queries)) | (columns == queries)
    return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, float("-inf")).unsqueeze(1)
