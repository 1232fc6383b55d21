"""Device time of single launches, by CUDA events, and the limits of the machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .case import Limits

__all__ = ["Timing", "limits_of", "race"]

SWEEP = 2**30  # bytes: many times any L2
WARMUP = 3
MOST_SWEEPS = 200


@dataclass(frozen=True)
class Timing:
    seconds: float  # on the device, the median over rounds
    host_seconds: float  # that the call occupies the host, the median over rounds
    rounds: tuple[float, ...]  # the device time of each round


def race(contenders: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, Timing]:
    """Time the contenders in rounds, each of which another contender begins.

    Before each launch a large buffer is written, which empties the L2 and takes longer than the host needs to enqueue
    the launch: the device's work is timed, and not its wait for the host.
    """
    sweep = torch.empty(SWEEP if device.type == "cuda" else 1, dtype=torch.uint8, device=device)
    for _ in range(WARMUP):
        for run in contenders.values():
            run()
    torch.cuda.synchronize()
    swept = _once(sweep.zero_, lambda: None)[0]
    sweeps = {
        name: min(MOST_SWEEPS, max(1, math.ceil(2 * _once(run, lambda: None)[1] / max(swept, 1e-6))))
        for name, run in contenders.items()
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            times[name].append(_once(contenders[name], lambda name=name: [sweep.zero_() for _ in range(sweeps[name])]))
    timings = {}
    for name, pairs in times.items():
        on_device, on_host = ([pair[i] for pair in pairs] for i in (0, 1))
        timings[name] = Timing(statistics.median(on_device), statistics.median(on_host), tuple(on_device))
    return timings


def _once(run: Callable[[], Any], before: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the device and on the host of one launch; `before` is not timed."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    begin.record()
    start = time.perf_counter()
    run()
    host = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, host


def limits_of(device: torch.device, rounds: int = 20, size: int = 2**30, side: int = 8192) -> Limits:
    """Measure a copy of `size` bytes, a bf16 product of square matrices, and copies from and to pinned memory."""
    on_cuda = device.type == "cuda"
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    host = torch.ones(size, dtype=torch.uint8, pin_memory=on_cuda)
    timed = race(
        {
            "copy": lambda: target.copy_(source),
            "matrix": lambda: a @ b,
            "to_host": lambda: host.copy_(source, non_blocking=True),
            "to_device": lambda: target.copy_(host, non_blocking=True),
        },
        rounds,
        device,
    )
    amounts = {"copy": 2 * size, "matrix": 2 * side**3, "to_host": size, "to_device": size}
    return Limits(**{name: amount / timed[name].seconds for name, amount in amounts.items()})
