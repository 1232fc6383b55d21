"""Contests: contenders run in turns, serve the same requests, and are timed alike."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from minifuse.errors import UsageError
from minifuse.model.source import Source
from minifuse.report import StepReport
from minifuse.request import FinishReason, Request
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique
from minifuse.timing import take_turns, time_in_turns, timed
from minifuse.trace import Trace

__all__ = ["serve_all", "take_turns", "time_in_turns", "timed"]


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
    engine = build_engine(technique(name), source, settings, model)
    reports: list[StepReport] = []
    if collect:
        gc.collect()
    served = serve(engine, requests, on_step=reports.append)
    if served.interrupted:
        raise KeyboardInterrupt
    refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
    if refused is not None:
        raise UsageError(refused)
    return served.trace, reports
