"""Attends a padded rectangle, with a mask: batch-wise inference (Baton, 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.rectangle import View, view_of
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Rectangle


@dataclass(frozen=True, slots=True)
class Rows:
    """Views adjacent rows of slots, and masks them for each query."""

    keys: tuple[Tensor, ...]  # per layer a view [rows, num_kv_heads, width, head_dim]
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, columns, width], added to the scores

    @classmethod
    def of(cls, cache: KVStorage, offset: int, stride: int, first: int, visible: Tensor) -> Rows:
        """Make views of rows of `stride` slots: in each row, the slots from `first` on.

        Args:
            offset: the first slot of the first row.
            visible: whether a query attends to a slot, [rows, columns, slots of the view].

        >>> # offset 10, stride 4, first 0, 2 rows and 3 slots of each: slots 10 to 12, and slots 14 to 16
        """
        rows, _, width = visible.shape
        keys, values = (
            kv[:, offset : offset + rows * stride]
            .unflatten(1, (rows, stride))
            .narrow(2, first, width)
            .transpose(2, 3)
            .unbind(0)
            for kv in (cache.keys, cache.values)
        )
        mask = torch.full(visible.shape, float("-inf"), dtype=cache.keys.dtype, device=cache.device)
        return cls(keys, values, mask.masked_fill_(visible, 0.0).unsqueeze(1))

    def attend(self, q: Tensor, layer: int) -> Tensor:
        """Attend q [rows * columns, num_heads, head_dim] to one layer; return [rows * columns, q_size]."""
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
    """Computes the columns [start, stop) of every row of the plan's rectangle.

    The batch has T = rows x (stop - start) tokens. Keys and values are views of the rectangle's window. The mask hides
    the slots that do not hold a row's own sequence.

    Prompts of 1 and 3 tokens are two rows of three columns. Row 0 begins with two idle tokens: each of their
    queries attends only to itself, and the real query attends to neither.

        row 0:  . . a     mask of 'a': [0, 0, 1]
        row 1:  x y z     mask of 'z': [1, 1, 1]

    If 'p q' then takes the row of 'a' while 'x y z' computes its next token, row 1 is padded after that token, and has
    a gap from then on (vector shaping, Baton 4.1):

        row 0:  . . . p q .     mask of the token after 'q': [0, 0, 0, 1, 1, 1]
        row 1:  x y z t . u     mask of 'u': [1, 1, 1, 1, 0, 1]
    """

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        rectangle = plan.shape
        if not isinstance(rectangle, Rectangle):
            raise LawBroken("layout", "the padded layout got a plan without a rectangle")
        view = view_of(plan, rectangle)
        visible = _visible(view, rectangle, cache.device)
        return Rows.of(cache, rectangle.offset, rectangle.stride, view.first, visible)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Rows) -> Tensor:
        return reads.attend(q, layer)


def _visible(view: View, rectangle: Rectangle, device: torch.device) -> Tensor:
    """Return whether each computed query attends to each slot: bool [rows, columns, width].

    A query attends to the columns of its row's sequence, up to its own column, and always to itself. If an idle query
    attended to nothing, its softmax would be NaN.

    >>> _visible(View(0, 2, [[(1, 2)]]), Rectangle(0, 1, 2, 0, 2), torch.device("cpu"))  # column 0 is idle
    tensor([[[ True, False],
             [False,  True]]])
    """
    begin = rectangle.begin  # columns are counted from here
    slots = torch.arange(view.width, device=device)
    columns = (slots + (view.first - begin)) % rectangle.stride
    queries = torch.arange(rectangle.start - begin, rectangle.stop - begin, device=device)[:, None]
    most = max(map(len, view.held))
    if most > 1 or rectangle.wraps:
        ranges = [held + [(0, 0)] * (most - len(held)) for held in view.held]
        first, last = torch.tensor(ranges, device=device)[..., None].unbind(2)  # [rows, most, 1]
        held = ((slots >= first) & (slots < last)).any(1, keepdim=True)  # [rows, 1, width]
    else:  # the range that a row holds ends with its last query
        first = torch.tensor([held[0][0] if held else view.width for held in view.held], device=device)
        held = slots >= first[:, None, None]
    return (held & (columns <= queries)) | (columns == queries)
