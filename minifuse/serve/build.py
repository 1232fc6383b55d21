"""From a technique, a model and a budget to an engine: the one way to build one, for every kind of model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from minifuse.clock import RealClock, VirtualClock
from minifuse.cores import OtherWork
from minifuse.engine import Engine
from minifuse.errors import ModelError, UsageError
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.model.source import Source
from minifuse.options import offered
from minifuse.serve.assembly import Stages, check_settings, make_batching
from minifuse.serve.served import Offer, ServedModel
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model
from minifuse.trace import Event, Trace
from minifuse.why import Accounting

if TYPE_CHECKING:
    from minifuse.model.text.tokenizer import Tokenizer

__all__ = ["build_engine"]

Made = TypeVar("Made")

SERVED = {"transformer": "minifuse.serve.texts:ServedText", "cells": "minifuse.serve.graphs:ServedCells"}  # by kind


def build_engine(
    technique: Technique,
    source: Source,
    settings: Settings,
    model: Any = None,
    trace_path: Path | str | TextIO | None = None,
    *,
    into: Callable[[Event], None] | None = None,
) -> Engine:
    """Plug a technique's stages into the loop.

    The engine serves one list of requests. One that is run by hand may run again: its clock and its metrics go on.

    Args:
        model: what `source.load` returned, with the dtype and the device of the settings; or `source.outline`, which
            virtual time can do with.
        into: is handed every event of the trace as it happens (`RunningMetrics.read`), and none is kept: for runs so
            long that memory could not hold all their steps.

    Raises:
        UsageError: the technique does not serve such a model, an option is wrong, the memory holds not even one slot,
            or the settings do not suit the model.
        MachineError: the memory does not fit the device.
    """
    _check_given(technique, source, settings, into)
    row = for_model(technique, source.kind)
    if settings.device == "auto" and model is not None and model.device.type != "meta":  # meta: an outline
        settings = replace(settings, device=model.device.type)
    batching = make_batching(row, settings.stage_options)
    module, _, name = SERVED[source.kind].partition(":")
    served: ServedModel = getattr(importlib.import_module(module), name)(source, settings, model, batching.granularity)
    capacity = served.kv_bytes // served.slot_bytes
    if capacity < 1:
        raise UsageError(
            f"The memory of {served.kv_bytes} bytes is less than the {served.slot_bytes} bytes of one "
            f"{served.slot} of {source.name} in {settings.dtype}: raise --kv-memory."
        )
    served.check()
    offers = _offers(row, settings, served)
    chosen = {**settings.stage_options, **{name: offer.value for name, offer in offers.items()}}
    if any(name.startswith("batching.") for name in offers):  # the policy was made before the model was asked
        batching = make_batching(row, chosen)
    stages = Stages.of(row, capacity, chosen, batching)
    if model is not None or settings.clock == "real":
        stages.attention.check(settings.device, settings.dtype)
    batching.check(source.name, served.cell_types)
    path = Path(trace_path) if isinstance(trace_path, str) else trace_path
    sources = {name: offer.source for name, offer in offers.items()}
    trace = _open_trace(path, into, row, source, settings, served.slot_bytes, capacity, sources)
    runner = served.runner(stages)
    clock: RealClock | VirtualClock
    executor: RealExecutor | VirtualExecutor
    if settings.clock == "virtual":
        clock = VirtualClock()
        executor = VirtualExecutor(
            *(clock, served.cost(), runner.run),
            shared=served.shares_device,
            link=served.link(stages.memory),
            on_close=runner.close,
        )
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
    parts = batching, stages.memory, stages.attention, executor, clock
    return Engine(*parts, reader=served.reader, trace=trace, observers=(Accounting(),) if settings.why else ())


def _check_given(technique: object, source: object, settings: object, into: object) -> None:
    """Raise `UsageError` where a name, or a dict, was given instead of what it means."""
    if not isinstance(technique, Technique):
        raise UsageError(f"build_engine was given the technique {technique!r:.60}: give technique('orca') or a mix.")
    if source is None or isinstance(source, (str, Path)):
        raise UsageError(f"build_engine was given the source {source!r:.60}: give resolve('tiny') or another.")
    if not isinstance(settings, Settings):
        raise UsageError(f"build_engine was given the settings {settings!r:.60}: give Settings(clock='virtual', ...).")
    if into is not None and not callable(into):
        raise UsageError(f"build_engine was given into={into!r:.60}: give a function of an event, or leave it out.")


def _offers(row: Technique, settings: Settings, served: ServedModel) -> dict[str, Offer]:
    """The value of each option, as `stage.option`, that the model may offer one for, and where the value comes from."""
    found = {}
    for kind, options in check_settings(row, settings.stage_options).items():
        for name, given in offered(options).items():
            offer = served.offer(name, asdict(options)) if given is None else Offer(given, "given")
            found[f"{kind}.{name}"] = offer or Offer(None, "assumed")
    return found


class _Texts:
    """Makes texts of tokens, with the model's tokenizer, which is read when it is first needed.

    Both methods return None for tokens that there is no text for, such as placeholders.
    """

    def __init__(self, source: Source) -> None:
        self._tokenizer = cache(source.tokenizer)

    def text(self, tokens: Sequence[int]) -> str | None:
        return self._made(tokens, lambda tokenizer: tokenizer.decode(list(tokens)))

    def pieces(self, tokens: Sequence[int]) -> tuple[str, list[int]] | None:
        return self._made(tokens, lambda tokenizer: tokenizer.pieces(tokens))

    def _made(self, tokens: Sequence[int], make: Callable[[Tokenizer], Made]) -> Made | None:
        try:
            return None if min(tokens, default=0) < 0 else make(self._tokenizer())
        except ModelError:  # what needs texts says so itself
            return None


def _open_trace(
    path: Path | TextIO | None,
    into: Callable[[Event], None] | None,
    row: Technique,
    source: Source,
    settings: Settings,
    slot_bytes: int,
    capacity: int,
    sources: dict[str, str],
) -> Trace:
    """The log of a run, which begins with how it is set up: memory has `capacity` slots, of a token or of a state.

    `sources` tell where the values of options come from that the model may offer; mostly there are none.
    """
    return Trace(
        path,
        into,
        OtherWork() if settings.clock == "real" else None,
        _Texts(source) if path is not None and source.has_tokenizer else None,
        technique=row.name,
        stages=row.stages,
        model=source.name,
        dtype=settings.dtype,
        clock=settings.clock,
        numerics=settings.numerics,
        seed=settings.seed,
        options={name: str(value) for name, value in settings.stage_options.items()},
        **({"option_sources": sources} if sources else {}),
        kv_bytes_per_token=slot_bytes,
        kv_capacity_tokens=capacity,
    )
