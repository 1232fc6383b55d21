"""Contests: contenders run in turns, serve the same requests, and are timed alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

from minifuse.engine import Engine
from minifuse.errors import UsageError
from minifuse.metrics import RunningMetrics
from minifuse.model.source import Source
from minifuse.report import StepReport
from minifuse.request import FinishReason, Request
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique
from minifuse.trace import Trace

__all__ = ["serve_all", "serve_counted", "take_turns", "time_in_turns", "timed"]

T = TypeVar("T")
SLEEP = 20_000_000  # cycles, about 10 ms: the GPU sleeps while the launches behind it are queued


def take_turns(runs: Mapping[str, Callable[[], T]], rounds: int, first: int = 0) -> dict[str, list[T]]:
    """Run every contender once a round, and return what its runs returned; each round begins with another contender.

    So a machine that grows slower or is busy for a while treats all contenders alike.

    Args:
        first: number of the contender that begins the first round; the next one begins the second.

    >>> order = []
    >>> take_turns({name: partial(order.append, name) for name in "abc"}, 2, first=1)["a"], "".join(order)
    ([None, None], 'bcacab')
    """
    names = list(runs)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(first, first + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            results[name].append(runs[name]())
    return results


def time_in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu"
) -> dict[str, tuple[float, ...]]:
    """Seconds of every run, after a round that does not count. On a GPU it is the GPU's own time, without launches."""
    clock = _gpu_seconds if device == "cuda" else _seconds
    taken = take_turns({name: partial(clock, run) for name, run in runs.items()}, rounds + 1, first=-1)
    return {name: tuple(seconds[1:]) for name, seconds in taken.items()}


def timed(run: Callable[[], object], rounds: int, device: str = "cpu") -> float:
    """Median seconds of a computation, after a run that does not count."""
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


def serve_all(
    name: str,
    source: Source,
    settings: Settings,
    model: Any,
    requests: Sequence[Request],
    collect: bool = False,
) -> tuple[Trace, list[StepReport]]:
    """Serve all requests with the technique `name`, and return the trace and the reports of its iterations.

    Args:
        model: None in virtual time with a transformer, where no weights are needed.
        collect: collect garbage first, so that what the last run left is not cleared away during this one.

    Raises:
        UsageError: a request was refused, or the model and its KV memory do not fit the machine of virtual time.
        KeyboardInterrupt: Ctrl-C, which `minifuse.serve.run.serve` by itself survives.
    """
    reports: list[StepReport] = []
    trace = _served(build_engine(technique(name), source, settings, model), requests, reports.append, collect)
    return trace, reports


def serve_counted(
    name: str, source: Source, settings: Settings, model: Any, requests: Sequence[Request], collect: bool = False
) -> RunningMetrics:
    """As `serve_all`, but nothing is kept of the iterations: only what their metrics count."""
    counted = RunningMetrics()
    _served(build_engine(technique(name), source, settings, model, into=counted.read), requests, _ignore, collect)
    return counted


def _ignore(report: StepReport) -> None:
    """Nothing is kept of an iteration."""


def _served(engine: Engine, requests: Sequence[Request], on_step: Callable[[StepReport], None], collect: bool) -> Trace:
    if collect:
        gc.collect()
    served = serve(engine, requests, on_step=on_step)
    if served.interrupted:
        raise KeyboardInterrupt
    refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
    if refused is not None:
        raise UsageError(refused)
    return served.trace
