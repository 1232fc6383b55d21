"""What all attention backends share: making the batch of a plan, and writing keys and values (Orca; Baton, 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.batch import Batch, Wave, batch_of, write
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rectangle import slots_to_clear
from minifuse.attention.rows import BatchRows, lay_out, real_rows
from minifuse.core.plan import Plan, Span
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle
from minifuse.kernels.operators import TORCH
from minifuse.memory.storage import KVStorage
from minifuse.model.operators import Operators, Rotation

__all__ = ["Backend", "TorchPerSequence"]


class Backend(ABC):
    """A backend defines what a wave reads (`reads`) and how its rows attend to that (`attention`)."""

    operators: Operators = TORCH

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        rows = lay_out(plan, sequences)
        slots = torch.tensor(rows.slots, device=cache.device)
        real = real_rows(plan, rows) if plan.shape else None
        batch = batch_of(plan, sequences, rows, [self._wave(plan, rows, slots, span, cache) for span in plan.waves])
        return batch if real is None else replace(batch, real=torch.tensor(real, device=cache.device))

    def _wave(self, plan: Plan, rows: BatchRows, slots: Tensor, span: Span, cache: KVStorage) -> Wave:
        """The rows of the work [span.start, span.stop); all rows of a shape that is computed whole."""
        ends = [*rows.starts, len(rows.token_ids)]
        start, stop = (0, len(rows.token_ids)) if plan.shape else (ends[span.start], ends[span.stop])
        idle = plan.shape is not None and plan.num_idle > 0
        live = (
            torch.tensor([r for r, slot in enumerate(rows.slots) if slot >= 0], device=cache.device) if idle else None
        )
        return Wave(start, stop, slots[start:stop], live, self.reads(plan, rows, span, cache), self.cleared(plan, span))

    def cleared(self, plan: Plan, span: Span) -> Seq[tuple[int, int]]:
        """Ranges of slots to be set to zero, which a wave reads behind a mask and which another sequence has had."""
        return slots_to_clear(plan, plan.shape) if isinstance(plan.shape, Rectangle) else ()

    @abstractmethod
    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        """What `attention` needs of a wave, the same in every layer. Made once for each plan."""

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        q = write(self.operators, heads, rotary, cache, layer, wave)
        for start, stop in wave.cleared:
            cache.keys[layer, start:stop] = 0
            cache.values[layer, start:stop] = 0
        return self.attention(q, cache, layer, wave.attended)

    @abstractmethod
    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        """Attend a wave's queries [rows, num_heads, head_dim] to what it reads; [rows, num_heads * head_dim]."""


class TorchPerSequence(PerSequenceAttention):
    """Attention request by request, with the operators in torch."""

    def __init__(self) -> None:
        super().__init__(TORCH)
