"""Packs the weights of linear layers for a CPU; makes modules without initialising their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PACKED_ROWS = 32  # the batch size oneDNN lays the weights out for; other sizes are correct, too, and nearly as fast


def packable(dtype: torch.dtype) -> bool:
    """Tell whether this machine's oneDNN has kernels for packed weights of a type."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Linear):
    """`y = x W^T + b` for x of shape `[tokens, in]`.

    `pack` lays the weights out once in the order in which oneDNN's kernels read them, if it has kernels for their type.
    An ordinary matrix product repacks them on every call, which for the few rows of a decode step costs more than the
    product itself.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias)
        self.packed: Tensor | None = None

    def reset_parameters(self) -> None:
        """Leave the weights unset: they are read or drawn later."""

    def pack(self) -> None:
        weight = self.weight
        if weight.device.type == "cpu" and packable(weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return out
        return nn.functional.linear(x, self.weight, self.bias)


def pack(model: nn.Module) -> None:
    """Pack the weights of all linear layers. Call this when the weights are final."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                child = _same_weights(child)
                setattr(module, name, child)
            if isinstance(child, Linear):
                child.pack()


class Unset(TorchFunctionMode):
    """Leaves the weights of modules made in this context unset."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return None
        return func(*args, **(kwargs or {}))


def _same_weights(linear: nn.Linear) -> Linear:
    with torch.device("meta"):
        same = Linear(linear.in_features, linear.out_features)
    same.weight, same.bias = linear.weight, linear.bias
    return same
