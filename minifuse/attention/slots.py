"""Attention over adjacent buffers: one token in each of [offset, offset + size), all at once (Flover, V-B, Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rows import Rows
from minifuse.layout import Region
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan
from minifuse.work import Span

__all__ = ["SlotsAttention"]


@dataclass(frozen=True, slots=True)
class _Buffers:
    keys: tuple[Tensor, ...]  # per layer a view [size, num_kv_heads, longest, head_dim] of the region's buffers
    values: tuple[Tensor, ...]
    mask: Tensor  # [size, 1, 1, longest], added to the scores


class SlotsAttention(PerSequenceAttention):
    """The region's buffers are views of the storage, without a gather; row i of every tensor is buffer offset + i.

    When buffers [1, 4) hold r2 at its 5th token, nobody, and r1 at its 2nd, row i sees the first [5, 1, 2] tokens of
    its buffer. An iteration with longer work, which is a prompt, is attended request by request.
    """

    def reads(self, plan: Plan, rows: Rows, span: Span, cache: KVStorage) -> Any:
        region = plan.shape
        if not isinstance(region, Region):
            return super().reads(plan, rows, span, cache)
        seen = torch.tensor(rows.positions, device=cache.device)
        longest = max(rows.positions) + 1
        keys, values = cache.rows_of(region.offset * region.width, region.size, region.width, longest)
        mask = torch.zeros(region.size, longest, dtype=cache.keys.dtype, device=cache.device)
        mask.masked_fill_(torch.arange(longest, device=cache.device) > seen[:, None], float("-inf"))
        return _Buffers(keys, values, mask[:, None, None])

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        if not isinstance(reads, _Buffers):
            return super().attention(q, cache, layer, reads)
        attended = scaled_dot_product_attention(
            q.unflatten(1, (cache.num_kv_heads, -1)),  # the heads that share a KV head together
            reads.keys[layer],
            reads.values[layer],
            attn_mask=reads.mask,
        )
        return attended.view(len(q), -1)
