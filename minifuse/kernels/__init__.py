"""Triton kernels, one concept per file, each with a PyTorch twin that specifies it.

A file holds the kernel, its twin (`..._torch`; all attention kernels share one), its launcher, which checks the
arguments, and `SHIPPED`, the forms that are compiled ahead of time. Importing this package does not import Triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minifuse.kernels.launch import Shipped

__all__ = ["MODULES", "shipped"]

MODULES = (
    "multi_token",
    "packed",
    "split_kv",
    "splits",
    "slots",
    "rotary_write",
    "rms_norm",
    "swiglu",
    "copy",
    "sampling",
    "lstm",
)


def shipped() -> list[Shipped]:
    """List every shipped form of every kernel. Imports Triton."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in MODULES)
    return [form for module in modules for form in module.SHIPPED]
