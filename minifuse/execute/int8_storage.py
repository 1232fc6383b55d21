"""KV tensors in 8 bits, for copies on the host (`memory.host_dtype=int8`)."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.attention.storage import KVStorage
from minifuse.model.text.shape import TextShape

LARGEST = 127  # of the whole numbers that a head's key or value becomes


class Int8Storage(KVStorage):
    """Keeps keys and values in 8 bits, with scales by token, layer and head.

    >>> kept, scales = torch.empty(1, 2, dtype=torch.int8), torch.empty(1, 1)
    >>> quantise(torch.tensor([[2.54, -1.0]]), kept, scales)
    >>> kept, scales  # a step is 2.54 / 127 = 0.02
    (tensor([[127, -50]], dtype=torch.int8), tensor([[0.0200]]))
    """

    def __init__(self, config: TextShape, num_slots: int, device: torch.device, pinned: bool = False) -> None:
        super().__init__(config, num_slots, torch.int8, device, pinned)
        shape = (*self.keys.shape[:-1], 1)
        self.scales = tuple([torch.zeros(shape, device=device, pin_memory=pinned) for _ in "kv"])  # of keys, of values

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of one token's KV in all layers."""
        num_layers, _, num_heads, dim = self.keys.shape
        return 2 * num_layers * num_heads * (dim + self.scales[0].element_size())

    def store(self, layers: slice, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values, each [layers, slots, num_kv_heads, head_dim]."""
        for read, kept, scales in zip((keys, values), (self.keys, self.values), self.scales, strict=True):
            quantise(read, kept[layers, slots], scales[layers, slots])

    def restore(self, layers: slice, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Write what was kept to `keys` and `values`, each [layers, slots, num_kv_heads, head_dim]."""
        for kept, scales, written in zip((self.keys, self.values), self.scales, (keys, values), strict=True):
            written.copy_(kept[layers, slots].to(written.device) * scales[layers, slots].to(written.device))


def quantise(numbers: Tensor, kept: Tensor, scales: Tensor) -> None:
    """Round `numbers` to steps of a row's largest over 127; writes `kept` and `scales`."""
    steps = numbers.abs().amax(-1, keepdim=True).float() / LARGEST
    scales.copy_(steps)
    kept.copy_((numbers / steps.where(steps != 0, 1)).round_())
