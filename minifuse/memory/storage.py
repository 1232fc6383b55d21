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

    @property
    def device(self) -> torch.device:
        return self.keys.device

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put `k` and `v`, both [n, num_kv_heads, head_dim], into `slots` [n] of one layer."""
        self.keys[layer].index_copy_(0, slots, k)
        self.values[layer].index_copy_(0, slots, v)

    def move(self, move: Move) -> None:
        """Copy slots [source, source + n) onto [target, target + n) in every layer; the two may overlap."""
        for kv in (self.keys, self.values):
            taken = kv[:, move.source : move.source + move.num_tokens].clone()
            kv[:, move.target : move.target + move.num_tokens] = taken
