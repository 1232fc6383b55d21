"""The operators other than attention, in plain torch (`minifuse.model.operators` is their interface)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from minifuse.core.plan import Move, Tier
from minifuse.core.report import NOT_FINITE
from minifuse.kernels.noise import gumbel_noise, rows_of_noise
from minifuse.kernels.rotary import RotaryRows


class TierTensors(Protocol):
    """Holds the keys and values of one tier, each [num_layers, slots, num_kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


class KVTensors(Protocol):
    """Holds the keys and values of all tiers; those of the device are its own."""

    @property
    def tiers(self) -> Mapping[Tier, TierTensors]: ...
    @property
    def keys(self) -> Tensor: ...
    @property
    def device(self) -> torch.device: ...

    def move(self, move: Move, layer: int | None = None) -> None:
        """Copy the slots of one move, in one layer or in all of them."""
        ...


class TorchOperators:
    """The operators in plain torch, on any device."""

    lock: AbstractContextManager[object] = nullcontext()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def rotate_and_write(
        self, heads: Tensor, rotary: RotaryRows | None, keys: Tensor, values: Tensor, slots: Tensor, live: Tensor | None
    ) -> Tensor:
        num_kv_heads = keys.shape[1]
        qk, v = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        rotated = qk if rotary is None else rotary.rotate(qk)
        q, k = rotated[:, :-num_kv_heads], rotated[:, -num_kv_heads:]
        if live is not None:
            slots, k, v = slots[live], k[live], v[live]  # an idle row's slot may be another sequence's
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)
        return q

    def move(self, cache: KVTensors, moves: Seq[Move], layer: int | None = None) -> None:
        for move in moves:
            cache.move(move, layer)

    def argmax(self, logits: Tensor) -> list[int]:
        if logits.device.type != "cpu":
            largest, at = logits.max(-1)  # a NaN is larger than any number
            indices: list[int] = at.masked_fill_(~largest.isfinite(), NOT_FINITE).tolist()
            return indices
        wide = (logits.float() if logits.dtype == torch.bfloat16 else logits).numpy()  # numpy has no bfloat16
        first = wide.argmax(-1)  # ten times as fast as torch's on a CPU; the first NaN is the largest here too
        finite = np.isfinite(wide[np.arange(len(wide)), first]).tolist()
        found: list[int] = first.tolist()
        if False in finite:
            return [index if fine else NOT_FINITE for index, fine in zip(found, finite, strict=True)]
        return found

    def gumbel_argmax(self, scaled: Tensor, seeds: Seq[int], positions: Seq[int]) -> list[int]:
        return self.argmax(scaled + gumbel_noise(*rows_of_noise(seeds, positions, scaled.device), scaled.shape[-1]))


TORCH = TorchOperators()
