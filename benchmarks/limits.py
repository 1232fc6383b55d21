"""The limits of this machine: read bandwidth and matrix-product rate, measured in the same run as the contenders."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

__all__ = ["matrix_rate", "read_bandwidth"]


def _best(work: Callable[[], object], seconds: float = 2.0) -> float:
    """Seconds of the shortest run of `work`, of as many as fit into `seconds`."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def read_bandwidth(size: int = 400_000_000) -> float:
    """Bytes per second of reading `size` bytes once with all threads."""
    data = torch.ones(size // 4)
    return data.nbytes / _best(data.sum)


def matrix_rate(size: int = 2048, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations per second of a square product large enough to be compute-bound."""
    a, b = (torch.randn(size, size).to(dtype) for _ in "ab")
    return 2 * size**3 / _best(lambda: a @ b)
