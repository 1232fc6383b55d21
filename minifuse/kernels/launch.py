"""Checks the arguments of every launcher, and records the shipped forms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minifuse.core.errors import KernelError

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton reads it: when a kernel is defined

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32,)

TYPES = {"scale": "fp32", "eps": "fp32", "partial_ptr": "*fp32", "lse_ptr": "*fp32", "slots_ptr": "*i64"}
TYPES |= dict.fromkeys(("cu_seqlens_ptr", "contexts_ptr", "first_ptr", "tables_ptr", "lengths_ptr"), "*i32")
TYPES |= dict.fromkeys(("starts_ptr", "sequences_ptr", "tokens_ptr"), "*i32")

Form = dict[str, Any]  # the constants of a kernel, by name, and how it is launched: `num_warps`, perhaps `num_stages`


@dataclass(frozen=True)
class Shipped:
    """A form of a serving kernel, compiled ahead of time to check its registers.

    `types` and `TYPES` hold the types of run-time arguments; by default a pointer is "*bf16" and a number "i32".
    """

    name: str  # "multi_token d128 g4 page16"
    kernel: Any  # a function decorated with triton.jit
    form: Form
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, int]:
        """Return the warps and stages of a launch; Triton's default is three stages."""
        return {"num_warps": self.form["num_warps"], "num_stages": self.form.get("num_stages", 3)}

    @property
    def constants(self) -> Form:
        """Return the constexpr arguments."""
        return {name: value for name, value in self.form.items() if name not in self.options}

    @property
    def signature(self) -> dict[str, str]:
        """Return the type of each argument in order, "constexpr" for constants."""
        named = {**TYPES, **self.types, **dict.fromkeys(self.constants, "constexpr")}
        return {name: named.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in self.kernel.arg_names}


def check(kernel: str, condition: bool, message: str) -> None:
    """Raise `KernelError` with `message` unless `condition` holds."""
    if not condition:
        raise KernelError(f"{kernel}: {message}")


def check_tensor(
    kernel: str,
    name: str,
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype] = FLOATS,
    device: torch.device | None = None,
    *,
    contiguous: bool = False,
) -> None:
    """Raise `KernelError` unless the launcher of `kernel` can take `tensor`.

    Args:
        shape: the required sizes; None where any size is allowed.
        device: where the kernel's other tensors are.
        contiguous: the whole tensor must be contiguous; otherwise only its last dimension must be.
    """
    if not isinstance(tensor, Tensor):
        raise KernelError(f"{kernel}: {name} is a {type(tensor).__name__}: give a tensor.")
    problem = _problem(tensor, shape, dtypes, device, contiguous)
    if problem is not None:  # the message is built only on failure: a launcher checks a dozen tensors, in every layer
        raise KernelError(f"{kernel}: {name} {problem}")


def _problem(
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None,
    contiguous: bool,
) -> str | None:
    have = tensor.shape
    if len(have) != len(shape) or any(want not in (None, size) for size, want in zip(have, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        return f"has the shape {list(have)}: give one of [{wanted}]."
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"is {str(tensor.dtype).removeprefix('torch.')}: give {allowed}."
    if device is not None and tensor.device != device:
        return f"is on {tensor.device} and the other tensors on {device}: move one."
    if contiguous and not tensor.is_contiguous():
        return f"has the strides {tensor.stride()}: make it contiguous."
    if not contiguous and have and have[-1] > 1 and tensor.stride(-1) != 1:
        return f"has the strides {tensor.stride()}: its last dimension must be contiguous."
    if INTERPRETED and tensor.dtype == torch.bfloat16:
        return "is bfloat16, which Triton's interpreter gets wrong: give float32 or float16."
    if not INTERPRETED and tensor.device.type != "cuda":
        return f"is on {tensor.device}: give CUDA tensors, or set TRITON_INTERPRET=1 to try it."
    return None
