"""Chooses the tensor half of an attention: Triton's kernels, torch, or the reference numerics."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from minifuse.attention.stage import AttentionStage
from minifuse.core.errors import MachineError, UsageError

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend

__all__ = ["KERNEL_DTYPES", "backend", "check"]

KERNEL_DTYPES = ("float32", "float16", "bfloat16")


def check(stage: AttentionStage, device: str, dtype: str) -> None:
    """Raise `UsageError` or `MachineError` if Triton was chosen and cannot run on this device or in this dtype."""
    if stage.options.backend != "triton":
        return
    if not stage.kernels:
        raise UsageError(
            f"attention.backend is triton, and the attention {stage.name!r} has no kernels: give "
            "attention.backend=torch."
        )
    if dtype not in KERNEL_DTYPES:
        raise UsageError(
            f"attention.backend is triton and --dtype is {dtype}: the kernels compute in "
            f"{', '.join(KERNEL_DTYPES[:-1])} or {KERNEL_DTYPES[-1]}; give one of them, or attention.backend=torch."
        )
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise MachineError(
            "attention.backend is triton and the device is a CPU: the kernels need a GPU; give "
            "attention.backend=torch, or set TRITON_INTERPRET=1 to try them, very slowly, in Triton's interpreter."
        )
    if device == "cpu" and dtype == "bfloat16":
        raise UsageError(
            "attention.backend is triton, in Triton's interpreter, which gets bfloat16 wrong: give --dtype float32 "
            "or float16."
        )


def backend(stage: AttentionStage, device: str, dtype: str, numerics: str) -> AttentionBackend:
    """The tensor half of a stage. Imports torch.

    Raises:
        UsageError: Triton kernels were chosen and cannot compute this, or there are no `numerics` of this name.
        MachineError: Triton kernels were chosen, and they need a GPU.
    """
    stage.check(device, dtype)
    reference, chosen = numerics == "reference", stage.options.backend
    if chosen == "auto":
        chosen = "triton" if device == "cuda" and dtype in KERNEL_DTYPES and stage.kernels else "torch"
    if reference and not stage.reference:
        raise UsageError(
            f"The numerics are reference, and the attention {stage.name!r} has none: give --numerics fast."
        )
    if chosen == "triton":
        return _construct(stage.kernels, reference)
    return _construct(stage.reference if reference else stage.tensors)


def _construct(path: str, *arguments: object) -> AttentionBackend:
    """An instance of the class that `path`, "module:class", names."""
    from minifuse.attention.per_sequence import PerSequenceAttention
    from minifuse.kernels.operators import TORCH

    module, _, name = path.partition(":")
    cls = getattr(importlib.import_module(module), name)
    given = (TORCH,) if issubclass(cls, PerSequenceAttention) else arguments  # it alone brings no operators
    made: AttentionBackend = cls(*given)
    return made
