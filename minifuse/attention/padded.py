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


@dataclass(frozen=True, slots=True)
class TwoParts:
    """Views rows whose window wraps around, in two parts.

    The second part lies at the beginning of the rows. Neither part is copied: the scores of both are normalised
    together, and the weighted sums are added.
    """

    parts: tuple[Rows, ...]

    def attend(self, q: Tensor, layer: int) -> Tensor:
        """Attend q [rows * columns, num_heads, head_dim] to one layer; return [rows * columns, q_size].

        Scores are float32 for 16-bit tensors, as in a fused kernel.
        """
        rows, _, columns, _ = self.parts[0].mask.shape
        num_kv_heads, wide = self.parts[0].keys[layer].shape[1], torch.promote_types(q.dtype, torch.float32)
        # [rows, kv heads, columns * group, dim]: query heads that share a KV head are rows of one product
        queries = (q.to(wide) * q.shape[2] ** -0.5).view(rows, columns, num_kv_heads, -1, q.shape[2])
        queries = queries.transpose(1, 2).flatten(2, 3)
        outputs = []
        for row in range(rows):
            scores = []
            for part in self.parts:
                keys = part.keys[layer][row].to(wide)  # [kv heads, width, dim]
                products = torch.bmm(queries[row], keys.transpose(1, 2)).unflatten(1, (columns, -1))
                scores.append(products + part.mask[row].transpose(0, 1))  # the mask is [columns, 1, width]
            weights = torch.cat(scores, -1).softmax(-1).to(q.dtype).flatten(1, 2)
            shares = weights.split([part.mask.shape[3] for part in self.parts], -1)
            sums = [torch.bmm(share, part.values[layer][row]) for share, part in zip(shares, self.parts, strict=True)]
            outputs.append(torch.stack(sums).sum(0))  # [kv heads, columns * group, dim]
        attended: Tensor = torch.stack(outputs).unflatten(2, (columns, -1))  # [rows, kv heads, columns, group, dim]
        return attended.transpose(1, 2).reshape(len(q), -1)


class PaddedAttention(Backend):
    """Computes the columns [start, stop) of every row of the plan's rectangle.

    The batch has T = rows x (stop - start) tokens. Keys and values are views of the rectangle's window, in two parts if
    it wraps around. The mask hides the slots that do not hold a row's own sequence.

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
        visible = _visible(view, rectangle, cache.device).split([stop - start for start, stop in view.parts], -1)
        offset, stride = rectangle.offset, rectangle.stride
        parts = [
            Rows.of(cache, offset, stride, part.start, seen) for part, seen in zip(view.parts, visible, strict=True)
        ]
        return parts[0] if len(parts) == 1 else TwoParts(tuple(parts))

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Rows | TwoParts) -> Tensor:
        return reads.attend(q, layer)


def _visible(view: View, rectangle: Rectangle, device: torch.device) -> Tensor:
    """Return whether each computed query attends to each column of the window.

    The result is bool [rows, columns, width]. A query attends to the columns of its row's sequence, up to its own
    column, and always to itself. If an idle query attended to nothing, its softmax would be NaN.

    >>> _visible(View((Span(0, 2),), [[(1, 2)]]), Rectangle(0, 1, 2, 0, 2), torch.device("cpu"))  # column 0 is idle
    tensor([[[ True, False],
             [False,  True]]])
    """
    begin = rectangle.begin  # columns are counted from here
    columns = torch.arange(view.width, device=device)
    queries = torch.arange(rectangle.start - begin, rectangle.stop - begin, device=device)[:, None]
    most = max(map(len, view.held))
    if most > 1:
        ranges = [held + [(0, 0)] * (most - len(held)) for held in view.held]
        first, last = torch.tensor(ranges, device=device)[..., None].unbind(2)  # [rows, most, 1]
        held = ((columns >= first) & (columns < last)).any(1, keepdim=True)  # [rows, 1, width]
    else:  # the range that a row holds ends with its last query
        first = torch.tensor([held[0][0] if held else view.width for held in view.held], device=device)
        held = columns >= first[:, None, None]
    return (held & (columns <= queries)) | (columns == queries)
