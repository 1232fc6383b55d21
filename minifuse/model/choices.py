"""Checks the settings of loading a model: number type, device, numerics."""

from __future__ import annotations

import re
from collections.abc import Collection

from minifuse.core.errors import MachineError, UsageError
from minifuse.io.parsing import did_you_mean, one_of
from minifuse.model.dtypes import DTYPE_BYTES

NUMERICS = ("fast", "reference")


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise `UsageError` unless the setting `name` may have this `value`."""
    if value not in allowed:
        raise UsageError(f"The setting {name} is {value!r}{did_you_mean(str(value), allowed)}: give {one_of(allowed)}.")


def check_device(device: object, *more: str) -> None:
    """Raise `UsageError` unless `device` is cpu, cuda, cuda:0, ..., or one of `more`."""
    if device not in more and not (isinstance(device, str) and re.fullmatch(r"cpu|cuda(:[0-9]+)?", device)):
        raise UsageError(f"The setting device is {device!r}: give cpu, cuda, or cuda:0 and so on.")


def find_device(wanted: str) -> str:
    """Find the device to compute on; for `auto`, cuda if available, else cpu.

    Raises:
        MachineError: there is no CUDA device.
    """
    if wanted == "cpu":
        return wanted
    import torch

    found = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if found else "cpu"
    if not found:
        raise MachineError(
            f"--device is {wanted}, and torch finds no CUDA device: use --device cpu, or see minifuse doctor."
        )
    return wanted


def check_loading(dtype: object, device: str, seed: object, numerics: object = "fast") -> None:
    """Check the settings of loading a model.

    Raises:
        UsageError: there is no such number type, device or numerics, or the seed is not a whole number.
        MachineError: this machine has no such device.
    """
    check_choice("dtype", dtype, DTYPE_BYTES)
    check_choice("numerics", numerics, NUMERICS)
    check_device(device, "meta")
    if not isinstance(seed, int):
        raise UsageError(f"The seed of random weights is {seed!r}: give a whole number.")
    if device.startswith("cuda"):
        import torch

        count = torch.cuda.device_count()
        if int(device.partition(":")[2] or 0) >= count:
            raise MachineError(f"The device is {device!r}, and torch finds {count} CUDA devices: use cpu or another.")
