"""The tensors that hold the states of cells (BatchMaker, 2.4.3)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a tensor of numbers; copy to a GPU asynchronously, from pinned memory."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class StateStorage:
    """Keeps a tensor [capacity + 1, *shape] per field; a slot is one row.

    The last row is always zero.

    Args:
        fields: the shape (without the batch dimension) and the dtype of each field.
    """

    def __init__(
        self, fields: Sequence[tuple[tuple[int, ...], torch.dtype]], capacity: int, device: str | torch.device = "cpu"
    ) -> None:
        self.zero = capacity  # the slot that is always zero
        self.fields = [torch.zeros(capacity + 1, *shape, dtype=dtype, device=device) for shape, dtype in fields]

    def read(self, field: int, slots: tuple[int, ...]) -> tuple[Tensor, bool]:
        """Return the states in these slots, [len(slots), *shape], and whether they were gathered.

        Consecutive slots in order, such as (3, 4, 5), are returned as a view; (3, 5, 4) and (3, 5) are
        gathered.
        """
        tensor, first = self.fields[field], slots[0]
        if slots == tuple(range(first, first + len(slots))):
            return tensor[first : first + len(slots)], False
        return tensor.index_select(0, on_device(slots, torch.int64, tensor.device)), True

    def write(self, field: int, slots: tuple[int, ...], states: Tensor) -> None:
        """Put states [len(slots), *shape] into these slots."""
        tensor, first = self.fields[field], slots[0]
        if slots == tuple(range(first, first + len(slots))):
            tensor[first : first + len(slots)] = states
        else:
            tensor.index_copy_(0, on_device(slots, torch.int64, tensor.device), states.to(tensor.dtype))
