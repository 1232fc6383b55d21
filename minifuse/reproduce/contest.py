"""Contests: contenders run in turns, serve the same requests, and are timed alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import FinishReason, Request
from minifuse.model.source import Source
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, technique
from minifuse.trace.log import Trace
from minifuse.trace.metrics import RunningMetrics


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
    engine = build_engine(resolve_run(technique(name), source, settings), model)
    trace = _served(engine, requests, reports.append, collect)
    return trace, reports


def serve_watched(
    name: str,
    source: Source,
    settings: Settings,
    model: Any,
    requests: Sequence[Request],
    on_step: Callable[[StepReport], None],
    collect: bool = False,
) -> None:
    """As `serve_all`, but `on_step` gets the reports one by one, and nothing is kept."""
    engine = build_engine(resolve_run(technique(name), source, settings), model, into=_ignore)
    _served(engine, requests, on_step, collect)


def serve_counted(
    row: str | Technique,
    source: Source,
    settings: Settings,
    model: Any,
    requests: Sequence[Request],
    collect: bool = False,
) -> RunningMetrics:
    """As `serve_all`, but nothing is kept of the iterations: only what their metrics count."""
    counted = RunningMetrics()
    row = technique(row) if isinstance(row, str) else row
    engine = build_engine(resolve_run(row, source, settings), model, into=counted.read)
    _served(engine, requests, _ignore, collect)
    return counted


def _ignore(told: object) -> None:
    """Nothing is kept of an iteration, or of an event."""


def _served(
    engine: ServingEngine, requests: Sequence[Request], on_step: Callable[[StepReport], None], collect: bool
) -> Trace:
    if collect:
        gc.collect()
    served = serve(engine, requests, on_step=on_step).whole()
    refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
    if refused is not None:
        raise UsageError(refused)
    return served.trace
