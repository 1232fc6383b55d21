"""Attention on the Triton kernels, one backend for every layout (Pensieve, 3.4.4; Flover, V-B)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.packed import lanes_of
from minifuse.attention.ragged import ragged
from minifuse.attention.rows import BatchRows
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Region
from minifuse.kernels.multi_token import multi_token_attention
from minifuse.kernels.packed import WorkLists, packed_attention
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.slots import slots_attention
from minifuse.kernels.split_kv import decode_attention
from minifuse.kernels.triton_operators import TritonOperators
from minifuse.memory.storage import KVStorage
from minifuse.model.operators import Operators

__all__ = ["TritonAttention"]


@dataclass(frozen=True, slots=True)
class _Buffers:
    region: Region
    lengths: Tensor  # [size] int32
    longest: int


@dataclass(frozen=True, slots=True)
class _Lanes:
    ragged: Ragged
    lists: WorkLists


class TritonAttention(Backend):
    """Attends the plans of every layout: a region, a rectangle, or sequences in runs or blocks, packed or not.

    Args:
        reference: compute each row so that its bits depend on its own text alone.
    """

    operators: Operators = TritonOperators()

    def __init__(self, reference: bool = False) -> None:
        self.reference = reference

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        if isinstance(plan.shape, Region) and not self.reference:
            lengths = [position + 1 for position in rows.positions]
            return _Buffers(plan.shape, torch.tensor(lengths, dtype=torch.int32, device=cache.device), max(lengths))
        sequences = ragged(plan, rows, span, cache.device)
        if not plan.layout.lanes or self.reference:
            return sequences
        lanes = lanes_of(plan, span)
        starts = list(accumulate(map(len, lanes), initial=0))
        numbers = [index - span.start for lane in lanes for index in lane]
        lists = (torch.tensor(some, dtype=torch.int32, device=cache.device) for some in (starts, numbers))
        return _Lanes(sequences, WorkLists(*lists))

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Ragged | _Buffers | _Lanes) -> Tensor:
        keys, values = cache.keys[layer], cache.values[layer]
        if isinstance(reads, _Buffers):
            offset, size, width = reads.region
            out = slots_attention(
                q, keys, values, reads.lengths, offset=offset, size=size, width=width, max_length=reads.longest
            )
        elif isinstance(reads, _Lanes):
            out = packed_attention(q, keys, values, reads.ragged, reads.lists)
        elif reads.max_queries == 1 and not self.reference:
            out = decode_attention(q, keys, values, reads)
        else:
            out = multi_token_attention(q, keys, values, reads, reference=self.reference)
        return out.flatten(1)
