"""The linear layer of every model, whose weights can be packed for a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Linear", "packable"]

PACKED_ROWS = 32  # the batch size oneDNN lays the weights out for; any other is correct, and nearly as fast


def packable(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN has kernels for packed weights of this type."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Module):
    """`y = x W^T + b` for x of shape `[tokens, in]`.

    `pack` lays the weights out once in the order in which oneDNN's kernels read them, if it has kernels for their type.
    An ordinary matrix product repacks them on every call, which for the few rows of a decode step costs more than the
    product itself.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.packed: Tensor | None = None

    def pack(self) -> None:
        weight = self.weight
        if weight.device.type == "cpu" and packable(weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return out
        return nn.functional.linear(x, self.weight, self.bias)
