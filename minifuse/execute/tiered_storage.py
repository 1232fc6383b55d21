"""KV tensors in tiers, and the copies within and between them (Pensieve; FluidInfer)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Move, Tier
from minifuse.execute.int8_storage import Int8Storage
from minifuse.model.text.shape import TextShape


class TieredStorage(KVStorage):
    """Keeps KV on the device, in slots that layers share, and on the host.

    For a GPU, the host's tensors are pinned.
    Attention clears what other sequences left: see `minifuse.attention.rectangle` and `minifuse.attention.slots`.

    Args:
        num_slots: slots of the device; a slot holds one token's KV in all layers.
        num_host_slots: slots of the host.
        num_shared_slots: further slots of the device, each of which holds one token's KV in one layer at a time.
        host_dtype: "int8": KV on the host is rounded to 8 bits. "auto": it is as on the device.
    """

    def __init__(
        self,
        config: TextShape,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_slots: int = 0,
        num_shared_slots: int = 0,
        host_dtype: str = "auto",
    ) -> None:
        super().__init__(config, num_slots, dtype, device)
        pinned = device.type == "cuda" and num_host_slots > 0
        host = torch.device("cpu")
        self._host = (
            Int8Storage(config, num_host_slots, host, pinned)
            if host_dtype == "int8"
            else KVStorage(config, num_host_slots, dtype, host, pinned)
        )
        self._shared = _SharedStorage(config, num_shared_slots, dtype, device)

    @property
    def copy_bytes(self) -> int:
        """Return the bytes of a token's copy on the host."""
        if isinstance(self._host, Int8Storage):
            return self._host.slot_bytes
        num_layers, _, num_heads, dim = self.keys.shape
        return 2 * num_layers * num_heads * dim * self.keys.element_size()

    @property
    def tiers(self) -> Mapping[Tier, KVStorage]:
        """Return the tensors of each tier. They are not kept: a cycle would keep them after the run."""
        return {"device": self, "host": self._host, "shared": self._shared}

    def move(self, move: Move, layer: int | None = None) -> None:
        """Copy a move's slots in one layer or in all; source and target may overlap."""
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        source = slice(move.source, move.source + move.num_tokens)
        target = slice(move.target, move.target + move.num_tokens)
        tiers = self.tiers
        one, other = tiers[move.source_tier], tiers[move.target_tier]
        if isinstance(other, Int8Storage):
            other.store(layers, target, one.keys[layers, source], one.values[layers, source])
            return
        if isinstance(one, Int8Storage):
            one.restore(layers, source, other.keys[layers, target], other.values[layers, target])
            return
        for read_from, write_to in ((one.keys, other.keys), (one.values, other.values)):
            read, written = read_from[layers, source], write_to[layers, target]
            overlap = not move.crosses and abs(move.source - move.target) < move.num_tokens
            written.copy_(read.clone() if overlap else read)


class _SharedStorage(KVStorage):
    """Keeps KV of one layer at a time; all layers view the same slots."""

    def __init__(self, config: TextShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(replace(config, num_layers=1), num_slots, dtype, device)
        views = (self.keys, self.values, self._keys_across, self._values_along)
        expanded = [view.expand(config.num_layers, -1, -1, -1) for view in views]
        self.keys, self.values, self._keys_across, self._values_along = expanded
