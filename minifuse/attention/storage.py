"""The KV tensors of all layers; the memory stage knows who owns which slot."""

import torch
from torch import Tensor

from minifuse.model.text.shape import TextShape


class KVStorage:
    """Keys and values, one token per slot: two tensors [num_layers, slots, num_kv_heads, head_dim].

    They begin as zeros, so that a masked slot that was never written contributes 0 x 0 and never 0 x NaN.
    """

    def __init__(
        self, config: TextShape, num_slots: int, dtype: torch.dtype, device: torch.device, pinned: bool = False
    ) -> None:
        shape = (config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self.num_heads = config.num_heads  # query heads that read the cache
        self.num_kv_heads = config.num_kv_heads
        self.device = device
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned) for _ in "kv")
        # Views in the order of a sequence's matrix products; made once, because views cost time too.
        self._keys_across = self.keys.permute(0, 2, 3, 1)  # [num_layers, num_kv_heads, head_dim, slots]
        self._values_along = self.values.permute(0, 2, 1, 3)  # [num_layers, num_kv_heads, slots, head_dim]

    def run_of(self, offset: int, length: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """View slots [offset, offset + length) in each layer.

        Returns:
            Keys, each [num_kv_heads, head_dim, length], ready for queries x keys; and values, each
            [num_kv_heads, length, head_dim], ready for weights x values.
        """
        keys = self._keys_across.narrow(3, offset, length).unbind(0)
        return keys, self._values_along.narrow(2, offset, length).unbind(0)
