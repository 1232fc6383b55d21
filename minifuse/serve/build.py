"""Builds an engine from a resolved run, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from minifuse.contracts.checks import checks_of
from minifuse.core.errors import ModelError, UsageError
from minifuse.core.requests import Observer
from minifuse.execute.cores import OtherWork
from minifuse.model.source import Source
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import ResolvedRun, serve_model
from minifuse.trace.log import Event, Trace
from minifuse.trace.why import Accounting


def build_engine(
    run: ResolvedRun,
    model: Any = None,
    trace_path: Path | str | TextIO | None = None,
    *,
    into: Callable[[Event], None] | None = None,
    observers: tuple[Observer, ...] = (),
) -> ServingEngine:
    """Plug the stages of a run into the loop.

    `serve` accepts an engine only once. An engine that is run by hand may run again: its clock and its metrics go on.

    Args:
        model: what `run.load` or `source.load` returned, with the dtype and the device of the settings. Virtual time
            needs none.
        into: is called with every event of the trace as it happens; an example is `RunningMetrics.read`. The trace then
            keeps no events: memory could not hold all steps of a long run.
        observers: further observers of the loop; they receive each event before the trace does.

    Raises:
        UsageError: the model is not the run's, or none was given and time is real.
        MachineError: the memory does not fit the device.
    """
    if not isinstance(run, ResolvedRun):
        raise UsageError(f"build_engine was given the run {run!r:.60}: give resolve_run(technique, source, settings).")
    if into is not None and not callable(into):
        raise UsageError(f"build_engine was given into={into!r:.60}: give a function of an event, or leave it out.")
    settings, source = run.settings, run.source
    model = run.outline if model is None else model
    served = serve_model(run.choices, source, settings, model)
    is_outline = model is None or (model.device.type == "meta" and settings.tensor_parallel == 1)
    if settings.clock == "real" and is_outline:
        raise UsageError("The engine was built without a model, and in real time one computes: give run.load().")
    stages = run.choices.stages(run.capacity)
    trace = Trace(
        Path(trace_path) if isinstance(trace_path, str) else trace_path,
        into,
        OtherWork() if settings.clock == "real" else None,
        _Texts(source) if trace_path is not None and source.has_tokenizer else None,
        technique=run.row.name,
        stages=run.row.stages,
        model=source.name,
        dtype=settings.dtype,
        clock=settings.clock,
        numerics=settings.numerics,
        seed=settings.seed,
        options={name: str(value) for name, value in settings.stage_options.items()},
        **({"option_sources": run.option_sources} if run.option_sources else {}),
        kv_bytes_per_token=served.slot_bytes,
        kv_capacity_tokens=run.capacity,
    )
    executor, clock = served.executor(stages)
    observers = (*checks_of(*stages), *observers)
    if settings.why:
        observers += (Accounting(),)
    return ServingEngine(*stages, executor, clock, reader=served.reader, trace=trace, observers=observers)


class _Texts:
    """Decodes tokens with the model's tokenizer, read when first needed; None if undecodable."""

    def __init__(self, source: Source) -> None:
        self._tokenizer = cache(source.tokenizer)

    def text(self, tokens: Sequence[int]) -> str | None:
        with suppress(ModelError):  # code that needs texts reports the missing tokenizer itself
            return self._tokenizer().decode(list(tokens))
        return None

    def pieces(self, tokens: Sequence[int]) -> tuple[str, list[int]] | None:
        with suppress(ModelError):
            return self._tokenizer().pieces(tokens)
        return None
