"""The free memory of the device that a model is loaded on."""

from __future__ import annotations

from pathlib import Path


def free_bytes(device: str) -> int | None:
    """Bytes that can be allocated now, or None where the platform does not report them."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
