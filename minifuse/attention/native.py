"""Attends every layout on a CPU with the C kernels (Pensieve, 3.4.4)."""

from __future__ import annotations

from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows, Wave
from minifuse.attention.ragged import ragged
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.kernels.native.operators import NativeOperators, NativeWave
from minifuse.model.operators import Rotation


class NativeAttention(Backend):
    """Attends regions, rectangles, and sequences in adjacent slots or blocks, packed or not.

    Lanes are not kept apart: threads take pieces in turn, in order, which packs them as well.
    """

    operators: NativeOperators

    def __init__(self, dtype: str) -> None:
        self.operators = NativeOperators(dtype)

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> NativeWave:
        sequences = ragged(plan, rows, span, cache.device)
        return NativeWave.of(sequences, cache.num_heads, *cache.keys.shape[2:])

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        wave.reads.check(cache.keys.shape[1])
        return super().attend(heads, rotary, cache, layer, wave)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: NativeWave) -> Tensor:
        return self.operators.attend(q, cache.keys[layer], cache.values[layer], reads)
