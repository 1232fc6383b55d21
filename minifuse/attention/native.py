"""Attends every layout on a CPU with the C kernels (Pensieve, 3.4.4)."""

from __future__ import annotations

from torch import Tensor

from minifuse.attention.backend import Batches, clear
from minifuse.attention.batch import BatchRows, Wave, rows_of
from minifuse.attention.ragged import ragged
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.kernels.native.operators import NativeOperators, NativeWave
from minifuse.model.operators import Rotation


class NativeAttention(Batches):
    """Attends regions, rectangles, and sequences in adjacent slots or blocks, packed or not.

    Lanes are not kept apart: threads take pieces in turn, in order, which packs them as well.
    """

    def __init__(self, dtype: str) -> None:
        self.operators = NativeOperators(dtype)

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> NativeWave:
        sequences = ragged(plan, rows, span, cache.device)
        return NativeWave.of(sequences, cache.num_heads, *cache.keys.shape[2:])

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        reads: NativeWave = wave.reads
        reads.check(cache.keys.shape[1])
        clear(cache, layer, wave)
        heads, rotary = rows_of(wave, heads, rotary)
        return self.operators.attend(heads, rotary, cache.keys, cache.values, wave.slots, layer, reads)
