"""The KV tensors of all layers, in both tiers. Which sequence owns which slot is known to the memory stage alone."""

from __future__ import annotations

from ctypes import memmove
from typing import Any

import torch
from torch import Tensor

from minifuse.core.plan import Move
from minifuse.model.text.config import ModelConfig

__all__ = ["KVStorage"]


class KVStorage:
    """Keys and values of every layer, one token a slot: two tensors [num_layers, slots, num_kv_heads, head_dim].

    They begin as zeros, so that a masked slot that was never written contributes 0 x 0 and never 0 x NaN. (What
    another sequence has had is cleared: see `minifuse.attention.rectangle` and `minifuse.attention.slots`.) The host
    tier is two more such tensors, of `num_host_slots` slots, in pinned memory where the device is a GPU.

    Args:
        num_slots: of the device, each of a token's KV of all layers.
        layers_in_turn: as `Memory.layers_in_turn`: 1, or all layers, for which the device has so many times as many
            slots, each of one layer's KV at a time.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_slots: int = 0,
        layers_in_turn: int = 1,
    ) -> None:
        self.in_turn = layers_in_turn > 1

        def zeros(slots: int, layers: int = config.num_layers, **where: Any) -> Tensor:
            return torch.zeros((layers, slots, config.num_kv_heads, config.head_dim), dtype=dtype, **where)

        self.num_heads = config.num_heads  # query heads that read the cache
        owners = 1 if self.in_turn else config.num_layers
        self.keys, self.values = (
            zeros(layers_in_turn * num_slots, owners, device=device).expand(config.num_layers, -1, -1, -1) for _ in "kv"
        )
        pinned = device.type == "cuda" and num_host_slots > 0
        self.host_keys, self.host_values = (zeros(num_host_slots, pin_memory=pinned) for _ in "kv")
        # Views of the same memory in the order of a sequence's matrix products; made once, because views cost time too.
        self._keys_across = self.keys.permute(0, 2, 3, 1)  # [num_layers, num_kv_heads, head_dim, slots]
        self._values_along = self.values.permute(0, 2, 1, 3)  # [num_layers, num_kv_heads, slots, head_dim]

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[2]

    def run_of(self, offset: int, length: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Views of slots [offset, offset + length), one for each layer.

        Returns:
            Keys, each [num_kv_heads, head_dim, length], ready for queries x keys; and values, each
            [num_kv_heads, length, head_dim], ready for weights x values.
        """
        keys = self._keys_across.narrow(3, offset, length).unbind(0)
        return keys, self._values_along.narrow(2, offset, length).unbind(0)

    def rows_of(
        self, offset: int, rows: int, width: int, length: int, first: int = 0
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Views of the slots [first, first + length) of each of `rows` adjacent rows of `width` slots, one a layer.

        >>> # offset 10, rows 2, width 4, length 3: slots 10 to 12, and slots 14 to 16

        Returns:
            Keys and values, each [rows, num_kv_heads, length, head_dim].
        """
        keys, values = (
            kv[:, offset : offset + rows * width]
            .unflatten(1, (rows, width))
            .narrow(2, first, length)
            .transpose(2, 3)
            .unbind(0)
            for kv in (self.keys, self.values)
        )
        return keys, values

    def move(self, move: Move, layer: int | None = None) -> None:
        """Copy the slots of a move from its source to its target, in one layer or in all. The two may overlap."""
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        source, target = (
            slice(move.source, move.source + move.num_tokens),
            slice(move.target, move.target + move.num_tokens),
        )
        for device, host in ((self.keys, self.host_keys), (self.values, self.host_values)):
            read = (host if move.source_tier == "host" else device)[layers, source]
            written = (host if move.target_tier == "host" else device)[layers, target]
            if layer is not None and read.is_cpu and written.is_cpu:
                # As a rule beside the computing, in another thread, for which torch would start threads of its own:
                # from then on they got in the way of those that compute, and whole runs took half as long again.
                memmove(written.data_ptr(), read.data_ptr(), read.nbytes)
                continue
            overlap = not move.crosses and abs(move.source - move.target) < move.num_tokens
            written.copy_(read.clone() if overlap else read)
