"""Packs the weights of linear layers for a CPU; makes modules without initialising their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minifuse.kernels.native.library import has_native, name_of
from minifuse.kernels.native.linear import linear, packed_panels

PACKED_ROWS = 32  # the batch size oneDNN lays the weights out for; other sizes are correct, too, and nearly as fast


def packable(dtype: torch.dtype) -> bool:
    """Tell whether this machine has kernels for packed weights of a type."""
    return _in_onednn(dtype) or has_native(name_of(dtype))


def _in_onednn(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _in_panels(dtype: torch.dtype) -> bool:
    """Tell whether the C kernels are faster: not where the processor multiplies bfloat16 itself."""
    return has_native(name_of(dtype)) and not (dtype == torch.bfloat16 and _in_onednn(dtype))


class Linear(nn.Linear):
    """`y = x W^T + b` for x of shape `[tokens, in]`.

    `pack` lays the weights out once in the order in which kernels read them: those in C, or oneDNN's. An ordinary
    matrix product repacks them on every call, which for the few rows of a decode step costs more than the product
    itself. With two threads the kernels in C take 0.2 to 0.8 times as long as oneDNN's for up to 32 rows, and as long
    for 512 (AVX2).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias)
        self.packed: Tensor | None = None
        self.in_panels = False

    def reset_parameters(self) -> None:
        """Leave the weights unset: they are read or drawn later."""

    def pack(self) -> None:
        weight = self.weight
        if weight.device.type != "cpu":
            return
        self.in_panels = _in_panels(weight.dtype)
        if self.in_panels:
            self.packed = packed_panels(weight.detach())
        elif _in_onednn(weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.in_panels:
            return linear(x, self.packed, self.bias, self.out_features)
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
