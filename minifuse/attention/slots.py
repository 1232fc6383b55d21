"""Attention over the adjacent buffers of a region: one token in each, all in one call (Flover, V-B, Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.backend import Backend
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rectangle import rows_of
from minifuse.attention.rows import BatchRows
from minifuse.core.places import extents_of
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Region
from minifuse.memory.storage import KVStorage

__all__ = ["SlotsAttention"]


@dataclass(frozen=True, slots=True)
class _Buffers:
    keys: tuple[Tensor, ...]  # per layer a view [size, num_kv_heads, longest, head_dim] of the region's buffers
    values: tuple[Tensor, ...]
    mask: Tensor  # [size, 1, 1, longest], added to the scores


class SlotsAttention(Backend):
    """The region's buffers are views of the storage, without a gather; row i of every tensor is buffer offset + i.

    If buffers [1, 4) hold r2 at its 5th token, no sequence, and r1 at its 2nd, then rows 0 to 2 attend to the first 5,
    1 and 2 tokens of their buffers. An iteration with work longer than a token, a prompt, is attended request by
    request.
    """

    def __init__(self) -> None:
        self._prompts = PerSequenceAttention(self.operators)

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        region = plan.shape
        if not isinstance(region, Region):
            return self._prompts.reads(plan, span, cache)
        last = torch.tensor(rows.positions, device=cache.device)
        longest = max(rows.positions) + 1
        keys, values = rows_of(cache, region.offset * region.width, region.size, region.width, longest)
        mask = torch.zeros(region.size, longest, dtype=cache.keys.dtype, device=cache.device)
        mask.masked_fill_(torch.arange(longest, device=cache.device) > last[:, None], float("-inf"))
        return _Buffers(keys, values, mask[:, None, None])

    def cleared(self, plan: Plan, span: Span) -> list[tuple[int, int]]:
        """The rest of every buffer that has got another sequence: one that begins, or that was shuffled there.

        A masked key has the weight 0, and 0 x NaN is NaN: what the last sequence has left there may not be read.

        >>> # a prompt of 3 tokens in the buffer of slots 16 to 23: slots [19, 24)
        """
        begins = any(not work.start for work in plan.work)  # perhaps later than its group
        if isinstance(plan.shape, Region) and not plan.admitted and not plan.moves and not begins:
            return []
        targets = {move.target for move in plan.moves}
        works = zip(plan.work[slice(*span)], extents_of(plan)[slice(*span)], strict=True)
        return [
            (place.offset + work.stop, place.offset + place.capacity)
            for work, place in works
            if (work.start == 0 or place.offset in targets) and work.stop < place.capacity
        ]

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        if not isinstance(reads, _Buffers):
            return self._prompts.attention(q, cache, layer, reads)
        attended = scaled_dot_product_attention(
            q.unflatten(1, (cache.num_kv_heads, -1)),  # heads that share a KV head side by side
            reads.keys[layer],
            reads.values[layer],
            attn_mask=reads.mask,
        )
        return attended.view(len(q), -1)
