"""The unit of measurement: a kernel at one size, the least work of that size, and the contenders that do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["BF16", "Case", "Contender", "Limits", "Trial", "Work", "error_of", "normal", "permuted"]

BF16 = 2  # bytes; the type in which work is counted


@dataclass(frozen=True)
class Limits:
    """The limits of the machine, measured in the same run."""

    copy: float  # bytes per second, read + written
    matrix: float  # bf16 floating-point operations per second
    to_host: float  # bytes per second over the link, one way
    to_device: float


@dataclass(frozen=True)
class Work:
    """The least work of a case: each input read once, each output written once."""

    moved: int = 0  # bytes read and written in the device's memory
    flops: int = 0
    to_host: int = 0  # bytes over the link
    to_device: int = 0

    def floor(self, limits: Limits) -> tuple[float, str]:
        """The shortest possible time in seconds, and the limit that decides it.

        >>> Work(moved=4_000, flops=10).floor(Limits(copy=1_000, matrix=100, to_host=1, to_device=1))
        (4.0, 'bandwidth')
        """
        seconds = {
            "bandwidth": self.moved / limits.copy,
            "matrix rate": self.flops / limits.matrix,
            "link": self.to_host / limits.to_host + self.to_device / limits.to_device,
        }
        bound = max(seconds, key=lambda name: seconds[name])
        return seconds[bound], bound


@dataclass(frozen=True)
class Contender:
    """One way to do a case's work. `read` turns the result of `run` into tensors shaped as the expected ones."""

    run: Callable[[], Any]
    read: Callable[[Any], Sequence[Tensor]] = lambda out: [out]


@dataclass(frozen=True)
class Trial:
    """A case with its tensors on a device. A contender that cannot take part is a string, the reason."""

    contenders: Mapping[str, Contender | str]
    expected: Callable[[], Sequence[Tensor]]  # by the twin in float32; empty: nothing to compare
    tolerance: float | None = None  # of `error_of`; None: that of rounding to the trial's dtype


@dataclass(frozen=True)
class Case:
    kernel: str
    size: str
    target: str  # the figure that the kernel should reach
    work: Work
    contenders: tuple[str, ...]  # the kernel first, then its baselines
    prepare: Callable[[torch.device, torch.dtype], Trial]


def error_of(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest relative error of a row: norm of the difference over norm of the expected row; infinite for NaN."""
    worst = 0.0
    for one, other in zip(got, want, strict=True):
        if one.shape != other.shape:
            return float("inf")
        if one.numel() == 0:
            continue
        one, other = (x.flatten(0, -2) if x.dim() > 1 else x[:, None] for x in (one, other))
        for rows, expected in zip(one.split(4096), other.split(4096), strict=True):  # float32 copies of a few at a time
            difference = (rows.float() - expected.float()).norm(dim=-1)
            norm = expected.float().norm(dim=-1)
            relative = torch.where(difference == 0, 0.0, difference / norm)
            largest = relative.max().item()
            if largest != largest:
                return float("inf")
            worst = max(worst, largest)
    return worst


def normal(shape: Sequence[int], device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
    """Standard normal numbers, the same in every run."""
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(tuple(shape), generator=draw, device=device, dtype=torch.float32).to(dtype)


def permuted(n: int, seed: int = 0) -> Tensor:
    """The numbers below n in a random order, on the CPU."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
