"""Attends every layout on a CPU with the C kernels (Pensieve, 3.4.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.ragged import ragged
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.kernels.native.operators import NativeOperators, NativeWave


class NativeAttention(Backend):
    """Attends regions, rectangles, and sequences in adjacent slots or blocks, packed or not.

    Lanes are not kept apart: threads take pieces in turn, in order, which packs them as well.
    """

    operators: NativeOperators

    def __init__(self, dtype: str) -> None:
        self.operators = NativeOperators(dtype)

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> NativeWave:
        num_slots, num_kv_heads, head_dim = cache.keys.shape[1:]
        sequences = ragged(plan, rows, span, torch.device("cpu"))
        return NativeWave.of(sequences, num_slots, cache.num_heads, num_kv_heads, head_dim)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: NativeWave) -> Tensor:
        return self.operators.attend(q, cache.keys[layer], cache.values[layer], reads)
