"""What is measured: a kernel at one size, the least it must do there, and who else does the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["BF16", "Case", "Contender", "Limits", "Trial", "Work", "error_of", "normal", "permuted"]

BF16 = 2  # bytes; what work is counted in


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best, measured in the same run."""

    copy: float  # bytes per second, read + written
    matrix: float  # bf16 floating-point operations per second
    to_host: float  # bytes per second over the link, one way
    to_device: float


@dataclass(frozen=True)
class Work:
    """The least that a case must do: each input read once, each output written once."""

    moved: int = 0  # bytes read and written in the device's memory
    flops: int = 0
    to_host: int = 0  # bytes over the link
    to_device: int = 0

    def floor(self, limits: Limits) -> tuple[float, str]:
        """Seconds in which it could be done at best, and what limits it.

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
    """One way to do a case's work. `read` turns what `run` returns into tensors shaped as the expected ones."""

    run: Callable[[], Any]
    read: Callable[[Any], Sequence[Tensor]] = lambda out: [out]


@dataclass(frozen=True)
class Trial:
    """A case on a device: its tensors lie ready. A contender that cannot take part is the reason why."""

    contenders: Mapping[str, Contender | str]
    expected: Callable[[], Sequence[Tensor]]  # by the twin in float32; empty: there is nothing to compare
    tolerance: float | None = None  # of `error_of`; None: what rounding to the trial's dtype explains


@dataclass(frozen=True)
class Case:
    kernel: str
    size: str
    target: str  # what shared/KERNELS.md asks for
    work: Work
    contenders: tuple[str, ...]  # the kernel first, then its peers
    prepare: Callable[[torch.device, torch.dtype], Trial]


def error_of(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest relative error of a row: norm of the difference over norm of what is expected. NaN never passes."""
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
            found = relative.max().item()
            if found != found:
                return float("inf")
            worst = max(worst, found)
    return worst


def normal(shape: Sequence[int], device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
    """Standard normal numbers, the same in every run."""
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(tuple(shape), generator=draw, device=device, dtype=torch.float32).to(dtype)


def permuted(n: int, seed: int = 0) -> Tensor:
    """The numbers below n in a random order, on the CPU."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
