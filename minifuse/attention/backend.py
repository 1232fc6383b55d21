"""What all attention backends share: making the batch of a plan, and writing keys and values (Orca; Baton, 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.batch import Batch, Wave
from minifuse.attention.rectangle import slots_to_clear
from minifuse.attention.rows import BatchRows, lay_out
from minifuse.core.plan import Plan, Span, sampled_work
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle
from minifuse.kernels.operators import TORCH, Operators
from minifuse.kernels.rotary import RotaryRows
from minifuse.memory.storage import KVStorage

__all__ = ["Backend"]


class Backend(ABC):
    """A backend defines what a wave reads (`reads`) and how its rows attend to that (`attention`)."""

    operators: Operators = TORCH

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        device = cache.device
        rows = lay_out(plan, sequences)
        real = rows.real(plan) if plan.shape else None
        slots = torch.tensor(rows.slots, device=device)
        sampled = sampled_work(plan, sequences)
        last = [rows.starts[i] + plan.work[i].num_tokens - 1 for i in sampled]
        return Batch(
            token_ids=torch.tensor(rows.token_ids, device=device),
            positions=torch.tensor(rows.positions, device=device),
            waves=tuple(self._wave(plan, rows, slots, span, cache) for span in plan.waves),
            sampled=tuple(plan.work[i].sequence for i in sampled),
            last_tokens=torch.tensor(last, device=device, dtype=torch.long),
            real=None if real is None else torch.tensor(real, device=device),
        )

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

    def attend(self, heads: Tensor, rotary: RotaryRows | None, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        if wave.stop - wave.start < len(heads):
            heads = heads[wave.start : wave.stop]
            rotary = None if rotary is None else rotary.rows(wave.start, wave.stop)
        q = self.operators.rotate_and_write(
            heads, rotary, cache.keys[layer], cache.values[layer], wave.slots, wave.live
        )
        for start, stop in wave.cleared:
            cache.keys[layer, start:stop] = 0
            cache.values[layer, start:stop] = 0
        return self.attention(q, cache, layer, wave.attended)

    @abstractmethod
    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        """Attend a wave's queries [rows, num_heads, head_dim] to what it reads; [rows, num_heads * head_dim]."""
