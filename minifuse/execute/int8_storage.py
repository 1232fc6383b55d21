"""KV tensors in 8 bits, for copies on the host (`memory.host_dtype=int8`)."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.attention.storage import KVStorage
from minifuse.model.text.shape import TextShape

LARGEST = 127  # of the whole numbers that a head's key or value becomes


class Int8Storage(KVStorage):
    """Keeps keys and values in 8 bits, with a scale for each token, layer and head.

    >>> store, back = torch.empty(1, 2, dtype=torch.int8), torch.empty(1, 2)
    >>> scale = torch.empty(1, 1)
    >>> quantise(torch.tensor([[2.54, -1.0]]), store, scale)
    >>> store, scale  # a step is 2.54 / 127 = 0.02
    (tensor([[127, -50]], dtype=torch.int8), tensor([[0.0200]]))
    """

    def __init__(self, config: TextShape, num_slots: int, device: torch.device, pinned: bool = False) -> None:
        super().__init__(config, num_slots, torch.int8, device, pinned)
        shape = (*self.keys.shape[:-1], 1)
        self._key_scales, self._value_scales = (torch.zeros(shape, device=device, pin_memory=pinned) for _ in "kv")

    @property
    def floating(self) -> tuple[Tensor, Tensor]:
        return self._key_scales, self._value_scales

    @property
    def slot_bytes(self) -> int:
        return super().slot_bytes + 2 * 4 * self.keys.shape[0] * self.num_kv_heads

    def store(self, layers: slice, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values, each [layers, slots, num_kv_heads, head_dim]."""
        for read, kept, scales in zip((keys, values), (self.keys, self.values), self.floating, strict=True):
            quantise(read, kept[layers, slots], scales[layers, slots])

    def restore(self, layers: slice, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Write what was kept to `keys` and `values`, each [layers, slots, num_kv_heads, head_dim]."""
        for kept, scales, written in zip((self.keys, self.values), self.floating, (keys, values), strict=True):
            written.copy_(kept[layers, slots].to(written.device) * scales[layers, slots].to(written.device))


def quantise(numbers: Tensor, kept: Tensor, scales: Tensor) -> None:
    """Round `numbers` to steps of a row's largest over 127; writes `kept` and `scales`."""
    steps = numbers.abs().amax(-1, keepdim=True).float() / LARGEST
    scales.copy_(steps)
    kept.copy_((numbers / steps.where(steps != 0, 1)).round_())
