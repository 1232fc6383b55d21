"""The map of the project: each technique is a row that names its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minifuse.errors import UsageError
from minifuse.options import describe_options
from minifuse.parsing import one_of, unknown
from minifuse.stages import COMPUTED_WHOLE, KINDS, Kind, stage
from minifuse.stages import stages as every_stage

__all__ = [
    "TECHNIQUES",
    "Technique",
    "for_model",
    "mix",
    "serving",
    "technique",
]


@dataclass(frozen=True, slots=True)
class Technique:
    """A named choice of stages. `options` are settings that make the technique what it is, as `stage.option: value`;
    `idea` is what it is about, where that is done only when there is need, as `minifuse/replay/page/deeds.js` calls it.
    """

    name: str
    summary: str
    paper: str
    section: str
    batching: str
    memory: str
    attention: str
    options: Mapping[str, Any] = field(default_factory=dict)
    idea: str | None = None

    @property
    def stages(self) -> dict[Kind, str]:
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def serves(self) -> frozenset[str]:
        """The kinds of model that its stages serve, or could if memory and attention were those for cells."""
        return frozenset(kind for kind in MODELS if _fitting(self, kind) is not None)

    @property
    def option_names(self) -> set[str]:
        """The options that its stages have, as `stage.option`."""
        stages = self.stages.items()
        return {f"{kind}.{o['name']}" for kind, name in stages for o in describe_options(stage(kind, name).Options)}

    @property
    def batch_sizes(self) -> tuple[str, ...]:
        """Those of them that bound how many requests are served at once, that of the batching policy first."""
        return tuple(option["name"] for option in self.described_options() if option["batch_size"])

    def described_options(self) -> Iterator[dict[str, Any]]:
        """The options of all its stages as `stage.option`, with the defaults that the technique sets."""
        for kind, stage_name in self.stages.items():
            for option in describe_options(stage(kind, stage_name).Options):
                name = f"{kind}.{option['name']}"
                yield {**option, "name": name, "default": self.options.get(name, option["default"])}


MODELS = {"transformer": "transformers", "cells": "models of cells (lstm, seq2seq, treelstm)"}
# The memory and attention of a technique for a kind of model that its batching serves beside another kind.
STAGES = {"cells": {"memory": "states", "attention": "cells"}}

_BATCHMAKER = "Gao et al., BatchMaker (EuroSys 2018), as in the thesis"
_PENSIEVE = "Yu, Pensieve, in the thesis of BatchMaker and Pensieve (2024)"
_VLLM = "Kwon et al., vLLM (SOSP 2023), as described by Pensieve and FluidInfer"
_FASTSERVE = "Wu et al., FastServe (2023), as described by FluidInfer"
_ORCA = "Yu et al., Orca (OSDI 2022), as described by Baton and FluidInfer"

TECHNIQUES: dict[str, Technique] = {
    row.name: row
    for row in (
        Technique(
            name="naive",
            summary="one request at a time, everything recomputed for every token",
            paper="-",
            section="the reference all others are checked against",
            batching="serial",
            memory="recompute",
            attention="per_sequence",
        ),
        Technique(
            name="serial",
            summary="one request at a time, with a KV cache",
            paper="-",
            section="the baseline without batching",
            batching="serial",
            memory="contiguous",
            attention="per_sequence",
        ),
        Technique(
            name="static",
            summary="a padded batch, run to completion; finished rows go on computing",
            paper="Baton",
            section='2.1 and "Benchmark" in 5.1',
            batching="static",
            memory="padded",
            attention="padded",
        ),
        Technique(
            name="dynamic",
            summary="wait a time window for more requests, then a padded batch run to completion",
            paper="Flover",
            section="III, dynamic batching",
            batching="dynamic",
            memory="padded",
            attention="padded",
        ),
        Technique(
            name="baton",
            summary="a padded batch in which a finished request is replaced at once; the others are padded meanwhile",
            paper="Baton",
            section="4.1, 4.3",
            batching="rebatch",
            memory="shaped",
            attention="padded",
        ),
        Technique(
            name="baton-pd",
            summary="a padded batch, refilled with prompts computed apart and embedded, which costs the others nothing",
            paper="Baton",
            section="4.2, 4.3",
            batching="decoupled",
            memory="embedded",
            attention="padded",
        ),
        Technique(
            name="pd",
            summary="prompts of similar length computed apart, then padded batches run to completion",
            paper="Baton",
            section="5.1",
            batching="decoupled",
            memory="embedded",
            attention="padded",
            options={"batching.refill": False},
        ),
        Technique(
            name="orca",
            summary="requests join and leave at every iteration; attention request by request",
            paper=_ORCA,
            section="Baton 2.2, FluidInfer 2",
            batching="iteration",
            memory="contiguous",
            attention="per_sequence",
        ),
        Technique(
            name="instances",
            summary="concurrent model instances: a worker for each request, on the same weights",
            paper="Flover",
            section="III, concurrent model instances",
            batching="instances",
            memory="contiguous",
            attention="per_sequence",
        ),
        Technique(
            name="fusion",
            summary="requests join one main stream at every iteration; their buffers stay adjacent, by shuffling",
            paper="Flover",
            section="V",
            batching="fusion",
            memory="slots",
            attention="slots",
            idea="shuffle",
        ),
        Technique(
            name="vllm",
            summary="KV in blocks, taken as requests grow; prompts run alone; the newest evicted when memory runs out",
            paper=_VLLM,
            section="Pensieve 3.4.2, 3.6.1, FluidInfer 2",
            batching="prefill_first",
            memory="paged",
            attention="paged",
            idea="evicted",
        ),
        Technique(
            name="fastserve",
            summary="the requests that have computed least run first; others are evicted, KV swapped ahead of time",
            paper=_FASTSERVE,
            section="FluidInfer 2",
            batching="mlfq",
            memory="tiered",
            attention="paged",
            options={"memory.keep": False, "memory.eviction": "lru"},
        ),
        Technique(
            name="srpt",
            summary="the requests with the fewest tokens left run first, told the lengths: the bound of fastserve",
            paper=_FASTSERVE,
            section="FluidInfer 2",
            batching="srpt",
            memory="tiered",
            attention="paged",
            options={"memory.keep": False, "memory.eviction": "lru"},
        ),
        Technique(
            name="pensieve",
            summary="conversations keep their KV on device and host; prompts and single tokens run together",
            paper=_PENSIEVE,
            section="3.4",
            batching="unified",
            memory="tiered",
            attention="paged",
            idea="found",
        ),
        Technique(
            name="fluid",
            summary="no batch size: all requests in every iteration, attended in waves from host memory, in lanes",
            paper="FluidInfer",
            section="4",
            batching="fluid",
            memory="waves",
            attention="packed",
            idea="waves",
        ),
        Technique(
            name="cellular",
            summary="cells of any requests are batched by type; requests join and leave at every cell",
            paper=_BATCHMAKER,
            section="2.3, 2.4",
            batching="cellular",
            memory="contiguous",
            attention="per_sequence",
        ),
        Technique(
            name="graph-padded",
            summary="a batch of chains of similar length, padded, run to completion as one graph",
            paper="BatchMaker",
            section="2.2.3, 2.7.1",
            batching="graph_padded",
            memory="rows",
            attention="padded_cells",
        ),
        Technique(
            name="graph-merged",
            summary="the graphs of a set of requests merged into one, cells of a depth batched, run to completion",
            paper="BatchMaker",
            section="2.2.3, 2.7.5",
            batching="graph_merged",
            memory="states",
            attention="cells",
        ),
    )
}


def for_model(row: Technique, kind: str) -> Technique:
    """`row` for a model of this kind: one that serves both keeps its batching, and its other stages suit the kind.

    Raises:
        UsageError: it does not serve such models.
    """
    fitting = _fitting(row, kind)
    if fitting is None:
        raise UsageError(
            f"{row.name} does not serve {MODELS[kind]}: choose {one_of(serving(kind))}, or a mix of stages that do."
        )
    return fitting


def serving(kind: str) -> tuple[str, ...]:
    """The names of the techniques that serve models of this kind."""
    return tuple(name for name, row in TECHNIQUES.items() if kind in row.serves)


def _fitting(row: Technique, kind: str) -> Technique | None:
    classes = {k: stage(k, name) for k, name in row.stages.items()}
    if all(kind in cls.serves for cls in classes.values()):
        return row
    if kind in STAGES and kind in classes["batching"].serves:
        options = {name: value for name, value in row.options.items() if name.startswith("batching.")}
        return replace(row, options=options, **STAGES[kind])
    return None


def technique(name: str) -> Technique:
    """The row called `name`.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    if name not in TECHNIQUES:
        raise unknown("technique", name, TECHNIQUES)
    return TECHNIQUES[name]


def mix(row: Technique, **stages: str | None) -> Technique:
    """`row` with some of its stages exchanged: `mix(orca, batching="static")`.

    Raises:
        UsageError: a stage does not exist, or the memory does not keep KV the way the attention reads it.
    """
    chosen = {kind: name for kind, name in stages.items() if name is not None and name != getattr(row, kind)}
    options = {name: value for name, value in row.options.items() if name.partition(".")[0] not in chosen}
    mixed = replace(row, options=options, **chosen) if chosen else row
    classes = {kind: stage(kind, getattr(mixed, kind)) for kind in KINDS}
    memory, attention = classes["memory"], classes["attention"]
    for kind in ("memory", "attention"):
        if classes["batching"].serves.isdisjoint(classes[kind].serves):
            raise UsageError(
                f"The batching {mixed.batching!r} serves {_models(classes['batching'])}, and the {kind} "
                f"{getattr(mixed, kind)!r} {_models(classes[kind])}: choose stages for the same kind of model."
            )
    if memory.in_step and not classes["batching"].in_step:
        fitting = _fitting_batching(memory)
        raise UsageError(
            f"The memory {memory.name!r} needs all running sequences in every iteration, which the batching "
            f"{mixed.batching!r} does not promise: choose the batching {one_of(fitting)}."
        )
    if memory.one_plan and not classes["batching"].one_plan:
        fitting = _fitting_batching(memory)
        raise UsageError(
            f"The memory {memory.name!r} may use all of the device for one plan, and the batching {mixed.batching!r} "
            f"may have several at once: choose the batching {one_of(fitting)}."
        )
    if memory.apart != classes["batching"].apart:
        fitting = _fitting_batching(memory)
        memories = [name for name, cls in every_stage("memory").items() if _suits(cls, classes["batching"])]
        where = "keeps prompts apart that wait for the batch" if memory.apart else "has no place apart for prompts"
        raise UsageError(
            f"The memory {memory.name!r} {where}, and the batching {mixed.batching!r} "
            f"{'computes none' if memory.apart else 'computes them'} there: choose the batching {one_of(fitting)}, or "
            f"the memory {one_of(memories)}."
        )
    if classes["batching"].cuts and attention.reads & COMPUTED_WHOLE:
        raise UsageError(
            f"The attention {attention.name!r} computes a whole rectangle or region, and the batching "
            f"{mixed.batching!r} bounds the tokens of an iteration: choose another attention, or another batching."
        )
    if attention.reads.isdisjoint(memory.offers):
        fitting = [
            name
            for name, cls in every_stage("memory").items()
            if attention.reads & cls.offers and _suits(cls, classes["batching"])
        ]
        readers = [name for name, cls in every_stage("attention").items() if cls.reads & memory.offers]
        read = " or ".join(sorted(attention.reads))
        raise UsageError(
            f"The attention {attention.name!r} reads KV as {read}, which the memory {memory.name!r} does not keep: "
            f"with it, choose the memory {' or '.join(map(repr, fitting))}; for this memory, the attention "
            f"{' or '.join(map(repr, readers))}."
        )
    if chosen:
        return replace(mixed, name="+".join(mixed.stages.values()), summary="a mix of stages", paper="-", section="-")
    return mixed


def _suits(memory: type[Any], batching: type[Any]) -> bool:
    """Whether a policy promises what a memory needs, and both serve a kind of model."""
    promised = memory.in_step <= batching.in_step and memory.one_plan <= batching.one_plan
    return bool(promised and memory.apart == batching.apart and not memory.serves.isdisjoint(batching.serves))


def _fitting_batching(memory: type[Any]) -> list[str]:
    return [name for name, cls in every_stage("batching").items() if _suits(memory, cls)]


def _models(cls: type[Any]) -> str:
    return " and ".join(name for kind, name in MODELS.items() if kind in cls.serves)
