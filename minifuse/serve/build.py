"""From a technique, a model and a budget to an engine: the one way to build one, for every kind of model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from minifuse.assembly import Stages, make_batching
from minifuse.clock import RealClock, VirtualClock
from minifuse.engine import Engine
from minifuse.errors import UsageError
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.model.source import Source
from minifuse.serve.served import ServedModel
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model
from minifuse.trace import Event, Trace

__all__ = ["build_engine"]

SERVED = {"transformer": "minifuse.serve.texts:ServedText", "cells": "minifuse.serve.graphs:ServedCells"}  # by kind


def build_engine(
    technique: Technique,
    source: Source,
    settings: Settings,
    model: Any = None,
    trace_path: Path | TextIO | None = None,
    *,
    into: Callable[[Event], None] | None = None,
) -> Engine:
    """Plug a technique's stages into the loop.

    Args:
        model: what `source.load` returned, or `source.outline`, which virtual time can do with.
        into: is handed every event of the trace as it happens (`RunningMetrics.read`), and none is kept: for runs so
            long that memory could not hold all their steps.

    Raises:
        UsageError: the technique does not serve such a model, an option is wrong, the memory holds not even one slot,
            or the settings do not suit the model.
        MachineError: the memory does not fit the device.
    """
    row = for_model(technique, source.kind)
    batching = make_batching(row, settings.stage_options)
    module, _, name = SERVED[source.kind].partition(":")
    served: ServedModel = getattr(importlib.import_module(module), name)(source, settings, model, batching.granularity)
    kv_bytes = settings.kv_bytes(source.slot_bytes(settings.dtype))
    capacity = kv_bytes // served.slot_bytes
    if capacity < 1:
        raise UsageError(
            f"The memory of {kv_bytes} bytes is less than the {served.slot_bytes} bytes of one "
            f"{served.slot} of {source.name} in {settings.dtype}: raise --kv-memory."
        )
    served.check()
    stages = Stages.of(row, capacity, settings.stage_options, batching)
    if model is not None or settings.clock == "real":
        stages.attention.check(settings.device, settings.dtype)
    batching.check(source.name, served.cell_types)
    trace = _open_trace(trace_path, into, row, source, settings, served.slot_bytes, capacity)
    runner = served.runner(stages)
    clock: RealClock | VirtualClock
    executor: RealExecutor | VirtualExecutor
    if settings.clock == "virtual":
        clock = VirtualClock()
        executor = VirtualExecutor(*(clock, served.cost(), runner.run), shared=served.shares_device, link=served.link())
    else:
        clock = RealClock()
        executor = RealExecutor(
            *(runner.run, clock, batching.workers),
            depth=batching.depth,
            issue=runner.issue,
            threads=runner.threads,
            on_close=runner.close,
            behind=runner.behind,
        )
    return Engine(*(batching, stages.memory, stages.attention, executor, clock), reader=served.reader, trace=trace)


def _open_trace(
    path: Path | TextIO | None,
    into: Callable[[Event], None] | None,
    row: Technique,
    source: Source,
    settings: Settings,
    slot_bytes: int,
    capacity: int,
) -> Trace:
    """The log of a run, which begins with how it is set up: memory has `capacity` slots, of a token or of a state."""
    return Trace(
        path,
        into,
        technique=row.name,
        stages=row.stages,
        model=source.name,
        dtype=settings.dtype,
        clock=settings.clock,
        numerics=settings.numerics,
        seed=settings.seed,
        options={name: str(value) for name, value in settings.stage_options.items()},
        kv_bytes_per_token=slot_bytes,
        kv_capacity_tokens=capacity,
    )
