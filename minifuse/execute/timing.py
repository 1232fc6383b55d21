"""Times computations in turns: on a CPU by the clock, on a GPU by events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

T = TypeVar("T")
SLEEP = 20_000_000  # cycles, about 10 ms: the GPU sleeps while the launches behind it are queued


def take_turns(runs: Mapping[str, Callable[[int], T]], rounds: int, first: int = 0) -> dict[str, list[T]]:
    """Run every contender once per round, and return the results of each.

    Each round begins with a different contender, so that a machine that slows down treats all alike.

    Args:
        runs: called with the number of the round.
        first: number of the contender that begins the first round; the next one begins the second.

    >>> order = []
    >>> _ = take_turns({name: lambda number, name=name: order.append((name, number)) for name in "ab"}, 2, first=1)
    >>> order
    [('b', 0), ('a', 0), ('a', 1), ('b', 1)]
    """
    names = list(runs)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        turn = (first + number) % len(names)
        for name in names[turn:] + names[:turn]:
            results[name].append(runs[name](number))
    return results


def time_in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu"
) -> dict[str, tuple[float, ...]]:
    """Time every run, after a warm-up round that does not count. Returns seconds.

    On a GPU, the GPU's own clock is used; launch times do not count.
    """
    clock = _gpu_seconds if device == "cuda" else _seconds

    def timer(run: Callable[[], object]) -> Callable[[int], float]:
        return lambda number: clock(run)

    taken = take_turns({name: timer(run) for name, run in runs.items()}, rounds + 1, first=-1)
    return {name: tuple(seconds[1:]) for name, seconds in taken.items()}


def timed(run: Callable[[], object], rounds: int, device: str = "cpu") -> float:
    """Return the median seconds of a computation, after a warm-up that does not count."""
    return median(time_in_turns({"": run}, rounds, device)[""])


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _gpu_seconds(run: Callable[[], object]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
