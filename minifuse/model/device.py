"""Checks the free memory of the device that a model is loaded on."""

from __future__ import annotations

from pathlib import Path

from minifuse.core.errors import MachineError
from minifuse.model.dtypes import DTYPE_BYTES, torch_dtype


def free_bytes(device: str) -> int | None:
    """Return the bytes that can be allocated now; None if the platform does not tell."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def check_weights_fit(
    name: str, dtype: str, device: str, parameters: int, packed: int, more: int, instead: str
) -> None:
    """Raise `MachineError` if the weights of a model do not fit the free memory.

    Args:
        name: the model's name, for the message.
        parameters: how many weights it has.
        packed: how many weights `Linear.pack` copies, on a CPU that has kernels for them.
        more: bytes needed in addition to the weights.
        instead: what to choose instead, for the message.
    """
    from minifuse.model.linear import packable

    if device == "cpu" and packable(torch_dtype(dtype)):
        parameters += packed
    needed, free = parameters * DTYPE_BYTES[dtype] + more, free_bytes(device)
    if free is not None and needed > free:
        raise MachineError(
            f"The weights of {name} take {needed / 2**30:.1f} GiB in {dtype} and {free / 2**30:.1f} GiB are free on "
            f"{device}: choose {instead}."
        )
