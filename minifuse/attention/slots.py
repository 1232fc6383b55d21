"""Attends a region's buffers, one token in each, in one call (Flover, V-B, Fig. 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.padded import Rows
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Region


class SlotsAttention(Backend):
    """Reads the region's buffers without a gather; row i is buffer offset + i.

    If buffers [1, 4) hold r2 at its 5th token, no sequence, and r1 at its 2nd, then rows 0 to 2 attend to the first 5,
    1 and 2 tokens of their buffers. A plan without a region, such as one of prompts, is attended request by request.
    """

    masked = True  # in a shorter buffer, the slots behind its last token are read, too

    def __init__(self) -> None:
        self._prompts = PerSequenceAttention(self.operators)

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        region = plan.shape
        if not isinstance(region, Region):
            return self._prompts.reads(plan, span, cache)
        last = torch.tensor(rows.positions, device=cache.device)
        visible = torch.arange(max(rows.positions) + 1, device=cache.device) <= last[:, None, None]
        return Rows.of(cache, region.offset * region.width, region.width, 0, visible)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        if isinstance(reads, Rows):
            return reads.attend(q, layer)
        return self._prompts.attention(q, cache, layer, reads)
