"""What all attention backends share: making the batch of a plan, and writing keys and values (Orca; Baton, 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.batch import Batch, BatchRows, Wave, batch_of, write
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rectangle import slots_to_clear
from minifuse.attention.rows import lay_out, real_rows
from minifuse.core.plan import Plan, Span
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle
from minifuse.kernels.operators import TORCH
from minifuse.memory.storage import KVStorage
from minifuse.model.operators import Operators, Rotation


class Backend(ABC):
    """A backend defines what a wave reads (`reads`) and how its rows attend to that (`attention`)."""

    operators: Operators = TORCH

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        rows = lay_out(plan, sequences)
        slots = torch.tensor(rows.slots, device=cache.device)
        ends = [*rows.starts, len(rows.slots)]
        found = real_rows(plan, rows) if plan.shape else None
        real = None if found is None else torch.tensor(found, device=cache.device)
        live = None if real is None or not plan.num_idle else real
        waves = []
        for span in plan.waves:
            start, stop = (0, ends[-1]) if plan.shape else (ends[span.start], ends[span.stop])
            reads, cleared = self.reads(plan, rows, span, cache), self.cleared(plan, span)
            waves.append(Wave(start, stop, slots[start:stop], live, reads, cleared))
        batch = batch_of(plan, sequences, rows, waves)
        return batch if real is None else replace(batch, real=real)

    def cleared(self, plan: Plan, span: Span) -> Seq[tuple[int, int]]:
        """Ranges of slots to be set to zero, which a wave reads behind a mask and which another sequence has had."""
        return slots_to_clear(plan, span) if isinstance(plan.shape, Rectangle) else ()

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
