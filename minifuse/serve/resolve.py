"""Resolves a run: parses options, fills in values, computes capacity, refuses contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minifuse.contracts.fault import blaming, call_check
from minifuse.core.errors import UsageError
from minifuse.model.choices import find_device
from minifuse.model.source import Source
from minifuse.model.text.load import TextSource
from minifuse.options import offered
from minifuse.serve.assembly import Choices, choose
from minifuse.serve.served import Offer, ServedModel
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model


@dataclass(frozen=True)
class ResolvedRun:
    """A valid run, from which any number of engines can be built."""

    choices: Choices
    source: Source
    settings: Settings  # with the device resolved: never "auto"
    outline: Any  # the model's, see `Source.outline`
    placeholders: bool  # whether all tokens are placeholders, as in virtual time if the model has no weights
    capacity: int  # slots of memory
    option_sources: Mapping[str, str]  # `stage.option` that a model may offer -> where its value comes from

    @property
    def row(self) -> Technique:
        return self.choices.row

    def load(self) -> Any:
        """Return the model for `build_engine`: with weights, or an outline if none are needed.

        Raises:
            ModelError: the checkpoint is not what its config.json says.
            MachineError: there is too little memory.
        """
        if self.placeholders:
            return self.outline
        settings = self.settings
        if settings.tensor_parallel > 1 and settings.clock == "real" and isinstance(self.source, TextSource):
            return self.source.whole_outline(settings.dtype)  # each rank loads its own part
        return self.source.load(settings.dtype, settings.device, settings.seed, settings.numerics)


def resolve_run(technique: Technique | Choices, source: Source, settings: Settings, outline: Any = None) -> ResolvedRun:
    """Resolve a run; raise if it cannot run. Reads no weights.

    Args:
        technique: a technique, or `Choices` that serve this kind of model. With `Choices`, the stage options in
            `settings` are ignored.
        outline: the model's outline, if another run has already made it.

    Raises:
        UsageError: the technique does not serve such a model, an option is wrong, the memory holds not even one slot,
            or the settings do not suit the model.
        MachineError: there is no such device.
    """
    if not isinstance(technique, (Technique, Choices)):
        raise UsageError(f"resolve_run was given the technique {technique!r:.60}: give technique('orca') or a mix.")
    if source is None or isinstance(source, (str, Path)):
        raise UsageError(f"resolve_run was given the source {source!r:.60}: give resolve('tiny') or another.")
    if not isinstance(settings, Settings):
        raise UsageError(f"resolve_run was given the settings {settings!r:.60}: give Settings(clock='virtual', ...).")
    if isinstance(technique, Choices):
        choices = technique
    else:
        choices = choose(for_model(technique, source.kind), settings.stage_options)
    placeholders = settings.clock == "virtual" and not source.has_weights
    device = settings.device.replace("auto", "cpu") if placeholders else find_device(settings.device)
    settings = replace(settings, device=device, stage_options=choices.given)
    outline = source.outline(settings.dtype, settings.seed) if outline is None else outline
    served = serve_model(choices, source, settings, outline)
    capacity = served.kv_bytes // served.slot_bytes
    if capacity < 1:
        raise UsageError(
            f"The memory of {served.kv_bytes} bytes is less than the {served.slot_bytes} bytes of one "
            f"{served.slot} of {source.name} in {settings.dtype}: raise --kv-memory."
        )
    choices, sources = _filled(choices, served)
    stages = choices.stages(capacity, choices.policy)
    with blaming(stages.attention, stages.batching):
        if not placeholders:
            call_check(stages.attention, settings.device, settings.dtype)
        call_check(stages.batching, source.name, served.cell_types)
    layers = getattr(choices.options["memory"], "layers", None)
    if layers not in (None, served.num_layers):
        raise UsageError(
            f"memory.layers is {layers}, and {source.name} has {served.num_layers} layers: leave memory.layers out."
        )
    return ResolvedRun(choices, source, settings, outline, placeholders, capacity, sources)


def serve_model(choices: Choices, source: Any, settings: Settings, model: Any) -> ServedModel:
    """Make the `ServedModel` of this run; `model` may be an outline."""
    if source.kind == "cells":
        from minifuse.serve.graphs import ServedCells  # imports torch

        return ServedCells(choices, source, settings, model)
    from minifuse.serve.texts import ServedText

    return ServedText(choices, source, settings, model)


def _filled(choices: Choices, served: ServedModel) -> tuple[Choices, dict[str, str]]:
    """Fill in option values that the model offers; also return each value's source."""
    options, sources = dict(choices.options), {}
    for kind, own in choices.options.items():
        for name, given in offered(own).items():
            offer = Offer(given, "given") if given is not None else served.offer(name, asdict(own))
            sources[f"{kind}.{name}"] = offer.source
            if offer.value != given:
                options[kind] = replace(options[kind], **{name: offer.value})
    if options == choices.options:
        return choices, sources  # the same object: its `policy` is already cached
    return replace(choices, options=options), sources
