"""KV tensors in two tiers, and the copies within and between them (Pensieve; FluidInfer)."""

from __future__ import annotations

from ctypes import memmove
from dataclasses import replace

import torch

from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Move
from minifuse.model.text.shape import TextShape


class TieredStorage(KVStorage):
    """Keeps KV on the device and on a host tier, pinned for a GPU.

    Attention clears what other sequences left: see `minifuse.attention.rectangle` and `minifuse.attention.slots`.

    Args:
        num_slots: slots of the device; a slot holds one token's KV in all layers.
        layers_in_turn: 1, or the number of layers, as in `Memory.layers_in_turn`. In the second case the device has
            that many times more slots, and a slot holds the KV of only one layer at a time.
    """

    def __init__(
        self,
        config: TextShape,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_slots: int = 0,
        layers_in_turn: int = 1,
    ) -> None:
        self.in_turn = layers_in_turn > 1  # whether all layers use the same slots of the device, one after the other
        apart = replace(config, num_layers=config.num_layers // layers_in_turn)
        super().__init__(apart, layers_in_turn * num_slots, dtype, device)
        views = (self.keys, self.values, self._keys_across, self._values_along)
        expanded = [view.expand(config.num_layers, -1, -1, -1) for view in views]
        self.keys, self.values, self._keys_across, self._values_along = expanded
        pinned = device.type == "cuda" and num_host_slots > 0
        shape = (config.num_layers, num_host_slots, config.num_kv_heads, config.head_dim)
        self.host_keys, self.host_values = (torch.zeros(shape, dtype=dtype, pin_memory=pinned) for _ in "kv")

    def move(self, move: Move, layer: int | None = None) -> None:
        """Copy a move's slots in one layer or in all; source and target may overlap."""
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        source = slice(move.source, move.source + move.num_tokens)
        target = slice(move.target, move.target + move.num_tokens)
        for device, host in ((self.keys, self.host_keys), (self.values, self.host_values)):
            read = (host if move.source_tier == "host" else device)[layers, source]
            written = (host if move.target_tier == "host" else device)[layers, target]
            if layer is not None and read.is_cpu and written.is_cpu:
                # This usually runs in another thread while plans compute. There, torch would start further threads,
                # which disturbed the computing threads: whole runs took 1.5 times as long.
                memmove(written.data_ptr(), read.data_ptr(), read.nbytes)
                continue
            overlap = not move.crosses and abs(move.source - move.target) < move.num_tokens
            written.copy_(read.clone() if overlap else read)
