"""Attention over the adjacent buffers of a region: one token in each, all in one call (Flover, V-B, Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.padded import Rows
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rectangle import slots_to_clear
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Region
from minifuse.memory.storage import KVStorage


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
        mask = torch.zeros(region.size, longest, dtype=cache.keys.dtype, device=cache.device)
        mask.masked_fill_(torch.arange(longest, device=cache.device) > last[:, None], float("-inf"))
        return Rows.of(cache, region.offset * region.width, region.width, 0, mask[:, None, None])

    def cleared(self, plan: Plan, span: Span) -> Seq[tuple[int, int]]:
        """Return the rest of each buffer with a new sequence: later plans read it, masked."""
        return slots_to_clear(plan, span)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        if isinstance(reads, Rows):
            return reads.attend(q, layer)
        return self._prompts.attention(q, cache, layer, reads)
