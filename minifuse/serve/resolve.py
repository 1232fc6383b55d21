"""From a technique, a model's source and settings to a run of which everything is known: the one place for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minifuse.errors import UsageError
from minifuse.model.choices import find_device
from minifuse.model.source import Source
from minifuse.options import offered
from minifuse.serve.assembly import Choices, choose
from minifuse.serve.served import Offer, ServedModel
from minifuse.serve.settings import Settings
from minifuse.stages import Kind
from minifuse.techniques import Technique, for_model

__all__ = ["ResolvedRun", "complete", "placeholders", "resolve_run", "serve_model"]

SERVED = {"transformer": "minifuse.serve.texts:ServedText", "cells": "minifuse.serve.graphs:ServedCells"}  # by kind


@dataclass(frozen=True)
class ResolvedRun:
    """A run that can be built: options parsed, offers and defaults filled in, contradictions refused.

    Any number of engines may be built of it.
    """

    choices: Choices
    source: Source
    settings: Settings  # the device is known
    outline: Any  # what stands in for the model where no weights are needed, see `Source.outline`
    slot_bytes: int
    capacity: int  # slots of memory
    option_sources: Mapping[str, str]  # where the values come from that a model may offer, by `stage.option`

    @property
    def row(self) -> Technique:
        return self.choices.row

    @property
    def placeholders(self) -> bool:
        """Whether no model runs, so that every token is a placeholder."""
        return placeholders(self.source, self.settings)

    def load(self) -> Any:
        """The model that `build_engine` takes: with its weights, or an outline where none are needed.

        Raises:
            ModelError: the checkpoint is not what its config.json says.
            MachineError: there is too little memory.
        """
        if self.placeholders:
            return self.outline
        settings = self.settings
        return self.source.load(settings.dtype, settings.device, settings.seed, settings.numerics)


def resolve_run(technique: Technique, source: Source, settings: Settings) -> ResolvedRun:
    """Settle everything that an engine is built of, and refuse what cannot be. No weights are read.

    Raises:
        UsageError: the technique does not serve such a model, an option is wrong, the memory holds not even one slot,
            or the settings do not suit the model.
        MachineError: there is no such device.
    """
    if not isinstance(technique, Technique):
        raise UsageError(f"resolve_run was given the technique {technique!r:.60}: give technique('orca') or a mix.")
    if source is None or isinstance(source, (str, Path)):
        raise UsageError(f"resolve_run was given the source {source!r:.60}: give resolve('tiny') or another.")
    if not isinstance(settings, Settings):
        raise UsageError(f"resolve_run was given the settings {settings!r:.60}: give Settings(clock='virtual', ...).")
    choices = choose(for_model(technique, source.kind), settings.stage_options)
    return complete(choices, source, settings, source.outline(settings.dtype, settings.seed))


def complete(choices: Choices, source: Source, settings: Settings, outline: Any) -> ResolvedRun:
    """A run of stages that were chosen for this kind of model. Raises as `resolve_run`.

    Args:
        settings: all but the options of stages, which are those of `choices`.
        outline: what `source.outline` returned.
    """
    settings = replace(settings, device=_device(source, settings), stage_options=choices.given)
    served = serve_model(choices, source, settings, outline)
    capacity = served.kv_bytes // served.slot_bytes
    if capacity < 1:
        raise UsageError(
            f"The memory of {served.kv_bytes} bytes is less than the {served.slot_bytes} bytes of one "
            f"{served.slot} of {source.name} in {settings.dtype}: raise --kv-memory."
        )
    served.check()
    offers = _offers(choices, served)
    choices = choices.filled({kind: _values(own) for kind, own in offers.items()})
    stages = choices.stages(capacity)
    if not placeholders(source, settings):
        stages.attention.check(settings.device, settings.dtype)
    choices.policy.check(source.name, served.cell_types)
    if stages.memory.layers_in_turn not in (1, served.num_layers):
        raise UsageError(
            f"{stages.memory.layers_in_turn} layers are to have the device in turn, and {source.name} has "
            f"{served.num_layers}: leave memory.layers out."
        )
    sources = {f"{kind}.{name}": offer.source for kind, own in offers.items() for name, offer in own.items()}
    return ResolvedRun(choices, source, settings, outline, served.slot_bytes, capacity, sources)


def placeholders(source: Source, settings: Settings) -> bool:
    """Whether no model runs: with random weights, virtual time computes nothing that a placeholder does not show."""
    return settings.clock == "virtual" and not source.has_weights


def _device(source: Source, settings: Settings) -> str:
    if not placeholders(source, settings):
        return find_device(settings.device)
    return "cpu" if settings.device == "auto" else settings.device


def serve_model(choices: Choices, source: Source, settings: Settings, model: Any) -> ServedModel:
    """A model in the settings of a run, of the class for its kind; `model` may be an outline."""
    module, _, name = SERVED[source.kind].partition(":")
    served: ServedModel = getattr(importlib.import_module(module), name)(choices, source, settings, model)
    return served


def _offers(choices: Choices, served: ServedModel) -> dict[Kind, dict[str, Offer]]:
    """The value of each option that the model may offer one for, and where the value comes from."""
    found: dict[Kind, dict[str, Offer]] = {}
    for kind, options in choices.options.items():
        found[kind] = {}
        for name, given in offered(options).items():
            offer = served.offer(name, asdict(options)) if given is None else Offer(given, "given")
            found[kind][name] = offer or Offer(None, "assumed")
    return found


def _values(offers: Mapping[str, Offer]) -> dict[str, Any]:
    """The values that were offered, for what was not given."""
    return {name: offer.value for name, offer in offers.items() if offer.value is not None and offer.source != "given"}
