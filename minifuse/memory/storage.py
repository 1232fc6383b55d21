"""The KV tensors themselves. Who owns which slot is the memory stage's affair; here is only what lies in them."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.model.config import ModelConfig
from minifuse.plan import Move

__all__ = ["KVStorage"]


class KVStorage:
    """Keys and values of every layer, one token a slot: two tensors [num_layers, slots, num_kv_heads, head_dim].

    They begin as zeros, so that a masked slot nobody has written contributes 0 x 0 and never 0 x NaN.
    """

    def __init__(self, config: ModelConfig, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        # The same memory, turned the way a sequence's matrix products want it; made once because views cost time too.
        self._keys_across = self.keys.permute(0, 2, 3, 1)  # [num_layers, num_kv_heads, head_dim, slots]
        self._values_along = self.values.permute(0, 2, 1, 3)  # [num_layers, num_kv_heads, slots, head_dim]

    @property
    def device(self) -> torch.device:
        return self.keys.device

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put `k` and `v`, both [n, num_kv_heads, head_dim], into `slots` [n] of one layer."""
        self.keys[layer].index_copy_(0, slots, k)
        self.values[layer].index_copy_(0, slots, v)

    def run_of(self, offset: int, length: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Slots [offset, offset + length) as views, one a layer.

        Returns:
            Keys, each [num_kv_heads, head_dim, length], ready for queries x keys; and values, each
            [num_kv_heads, length, head_dim], ready for weights x values.
        """
        keys = self._keys_across.narrow(3, offset, length).unbind(0)
        return keys, self._values_along.narrow(2, offset, length).unbind(0)

    def rows_of(self, offset: int, rows: int, width: int, length: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The first `length` slots of each of `rows` adjacent rows of `width` slots, as views, one a layer.

        Returns:
            Keys and values, each [rows, num_kv_heads, length, head_dim].
        """
        keys, values = (
            kv[:, offset : offset + rows * width].unflatten(1, (rows, width))[:, :, :length].transpose(2, 3).unbind(0)
            for kv in (self.keys, self.values)
        )
        return keys, values

    def move(self, move: Move, layer: int | None = None) -> None:
        """Copy slots [source, source + n) onto [target, target + n), in one layer or in all; the two may overlap."""
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        overlap = abs(move.source - move.target) < move.num_tokens
        for kv in (self.keys[layers], self.values[layers]):
            taken = kv[:, move.source : move.source + move.num_tokens]
            kv[:, move.target : move.target + move.num_tokens] = taken.clone() if overlap else taken
