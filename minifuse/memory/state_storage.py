"""The tensors that states of cells lie in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["StateStorage"]


class StateStorage:
    """One tensor [capacity + 1, *shape] for each field; a slot is a row of all of them. The last row is always zero.

    Args:
        fields: shape, without the batch dimension, and dtype of each.
    """

    def __init__(
        self, fields: Sequence[tuple[tuple[int, ...], torch.dtype]], capacity: int, device: str | torch.device = "cpu"
    ) -> None:
        self.zero = capacity  # the slot that is always zero
        self.fields = [torch.zeros(capacity + 1, *shape, dtype=dtype, device=device) for shape, dtype in fields]

    def read(self, field: int, slots: tuple[int, ...]) -> tuple[Tensor, bool]:
        """The states in these slots, [len(slots), *shape], and whether they had to be copied together.

        Slots side by side in order are a view: nothing is copied.
        """
        tensor, first = self.fields[field], slots[0]
        if slots == tuple(range(first, first + len(slots))):
            return tensor[first : first + len(slots)], False
        return tensor.index_select(0, torch.tensor(slots, device=tensor.device)), True

    def write(self, field: int, slots: tuple[int, ...], states: Tensor) -> None:
        """Put states [len(slots), *shape] into these slots."""
        tensor, first = self.fields[field], slots[0]
        if slots == tuple(range(first, first + len(slots))):
            tensor[first : first + len(slots)] = states
        else:
            tensor.index_copy_(0, torch.tensor(slots, device=tensor.device), states.to(tensor.dtype))
