"""The map of the project: each technique is a row that names its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.io.parsing import one_of, unknown
from minifuse.options import describe_options
from minifuse.stages import COMPUTED_WHOLE, KINDS, Kind, stage
from minifuse.stages import stages as every_stage


@dataclass(frozen=True, slots=True)
class Technique:
    """A named choice of stages.

    Attributes:
        options: settings that make the technique what it is, as `stage.option: value`.
        idea: the kind of action that the technique is about, if some runs lack it (`minifuse/show/page/actions.js`).
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
    def mix(self) -> str:
        """Return the names of the stages, as a machine's profile has them."""
        return "+".join(self.stages.values())

    @property
    def classes(self) -> dict[Kind, type[Any]]:
        """Return the classes of the technique's stages."""
        return {kind: stage(kind, name) for kind, name in self.stages.items()}

    @property
    def serves(self) -> frozenset[str]:
        """Return the kinds of model that the technique serves, perhaps with other stages (see `STAGES`)."""
        return frozenset(kind for kind in MODELS if _fitting(self, kind) is not None)

    @property
    def option_names(self) -> set[str]:
        """Return the names of the options of all stages, as `stage.option`."""
        return {option["name"] for option in self.described_options()}

    @property
    def batch_sizes(self) -> tuple[str, ...]:
        """Return the options that limit how many requests are served at once, batching's first."""
        return tuple(option["name"] for option in self.described_options() if option["batch_size"])

    def described_options(self) -> Iterator[dict[str, Any]]:
        """Yield the options of all stages as `stage.option`, with the technique's defaults."""
        for kind, cls in self.classes.items():
            for option in describe_options(cls.Options):
                name = f"{kind}.{option['name']}"
                yield {**option, "name": name, "default": self.options.get(name, option["default"])}


MODELS = {"transformer": "transformers", "cells": "models of cells (lstm, seq2seq, treelstm)"}
# Kind of model -> memory and attention to use if the batching serves the kind, and the technique's own do not.
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
            summary="prompts of similar length computed apart, then padded batches, drawn at random, run to completion",
            paper="Baton",
            section="5.1",
            batching="decoupled",
            memory="embedded",
            attention="padded",
            options={"batching.refill": False, "batching.compose": "random", "memory.shrink": False},
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
            summary="no batch size: all requests whose KV can be attended run, the newest pause; attention in lanes",
            paper="FluidInfer",
            section="4",
            batching="fluid",
            memory="waves",
            attention="packed",
            idea="evicted",
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
    """Return `row` for this kind of model, with memory and attention replaced if needed.

    Raises:
        UsageError: the technique does not serve such models.
    """
    fitting = _fitting(row, kind)
    if fitting is None:
        raise UsageError(
            f"{row.name} does not serve {MODELS[kind]}: choose {one_of(serving(kind))}, or a mix of stages that do."
        )
    return fitting


def serving(kind: str) -> tuple[str, ...]:
    """Return the names of the techniques that serve models of this kind."""
    return tuple(name for name, row in TECHNIQUES.items() if kind in row.serves)


def _fitting(row: Technique, kind: str) -> Technique | None:
    if all(kind in cls.serves for cls in row.classes.values()):
        return row
    if kind in STAGES and kind in row.classes["batching"].serves:
        options = {name: value for name, value in row.options.items() if name.startswith("batching.")}
        return replace(row, options=options, **STAGES[kind])
    return None


def technique(name: str) -> Technique:
    """Return the row called `name`.

    Raises:
        UsageError: there is no such technique; the message names the nearest.
    """
    if name not in TECHNIQUES:
        raise unknown("technique", name, TECHNIQUES)
    return TECHNIQUES[name]


class Rule(NamedTuple):
    """What two stages of a mix need of each other; stages may be classes."""

    kinds: tuple[Kind, Kind]
    kept: Callable[[Any, Any], Any]  # whether two stages of these kinds keep the rule
    broken: str  # what is wrong otherwise; {batching}, {memory} and {attention} are the names of the stages
    otherwise: str = ""  # what to choose instead of a policy whose options break the rule


RULES = (
    Rule(
        ("batching", "memory"),
        lambda batching, memory: batching.serves & memory.serves,
        "The batching {batching} and the memory {memory} serve no kind of model together",
    ),
    Rule(
        ("batching", "attention"),
        lambda batching, attention: batching.serves & attention.serves,
        "The batching {batching} and the attention {attention} serve no kind of model together",
    ),
    Rule(
        ("batching", "memory"),
        lambda batching, memory: batching.in_step or not memory.in_step,
        "The memory {memory} needs all running sequences in every iteration, which {batching} does not promise",
    ),
    Rule(
        ("batching", "memory"),
        lambda batching, memory: _has_one_plan(batching) or not memory.one_plan,
        "The memory {memory} may use all of the device for one plan, and {batching} may have several at once",
        "one worker with one plan",
    ),
    Rule(
        ("batching", "memory"),
        lambda batching, memory: _has_one_plan(batching) or not memory.scales,
        "The memory {memory} evicts above memory.threshold, and {batching} may have several plans at once",
        "memory.threshold=1 or one worker",
    ),
    Rule(
        ("batching", "memory"),
        lambda batching, memory: batching.apart or not memory.apart,
        "The memory {memory} keeps prompts apart that wait for the batch, and {batching} computes none there",
    ),
    Rule(
        ("batching", "memory"),
        lambda batching, memory: memory.apart or not batching.apart,
        "The memory {memory} has no place apart for prompts, and {batching} computes them there",
    ),
    Rule(
        ("batching", "attention"),
        lambda batching, attention: not (_has_budget(batching) and attention.reads & COMPUTED_WHOLE),
        "The attention {attention} computes whole rectangles, and {batching} bounds the tokens of an iteration",
        "no token_budget (a policy that always has one declares cuts = True)",
    ),
    Rule(
        ("memory", "attention"),
        lambda memory, attention: memory.offers & attention.reads,
        "The attention {attention} reads KV as {reads}, which the memory {memory} does not keep",
    ),
)


def _is_class(stage: Any) -> bool:
    return isinstance(stage, type)


def _has_one_plan(batching: Any) -> Any:
    return batching.one_plan if _is_class(batching) else batching.workers * batching.depth == 1


def _has_budget(batching: Any) -> Any:
    return batching.cuts if _is_class(batching) else batching.token_budget is not None


def mix(row: Technique, **stages: str | None) -> Technique:
    """Return `row` with some of its stages replaced: `mix(orca, batching="static")`.

    Raises:
        UsageError: a stage does not exist, or two stages do not fit together.
    """
    chosen = {kind: name for kind, name in stages.items() if name is not None and name != getattr(row, kind)}
    options = {name: value for name, value in row.options.items() if name.partition(".")[0] not in chosen}
    mixed = replace(row, options=options, **chosen) if chosen else row
    check_fit(mixed.classes)
    if chosen:
        return replace(mixed, name=mixed.mix, summary="a mix of stages", paper="-", section="-")
    return mixed


def mix_for(row: Technique, kind: str, **stages: str | None) -> Technique:
    """Return `row` for a kind of model, with some of its stages replaced.

    Raises:
        UsageError: the technique, or one of these stages, does not serve such models; or as for `mix`.
    """
    mixed = mix(for_model(row, kind), **stages)
    for place, cls in mixed.classes.items():
        if kind not in cls.serves:
            fitting = [name for name, other in every_stage(place).items() if kind in other.serves]
            raise UsageError(f"The {place} {cls.name!r} does not serve {MODELS[kind]}: choose {one_of(fitting)}.")
    return mixed


def fit(names: Mapping[Kind, str]) -> bool:
    """Tell whether stages of these names can be mixed."""
    return _broken({kind: stage(kind, name) for kind, name in names.items()}) is None


def check_fit(stages: Mapping[Kind, Any]) -> None:
    """Raise `UsageError` unless these stages can be mixed; its message names stages that fit."""
    rule = _broken(stages)
    if rule is None:
        return
    pair = {kind: stages[kind] for kind in rule.kinds}
    choices = []
    for kind in rule.kinds:
        if rule.otherwise and not _is_class(stages[kind]):
            choices.append(rule.otherwise)
        elif names := _that_fit(kind, stages) or _that_fit(kind, pair):
            choices.append(f"the {kind} {one_of(map(repr, names))}")
    names_of = {kind: repr(one.name) for kind, one in stages.items()}
    broken = rule.broken.format(**names_of, reads=" or ".join(sorted(stages["attention"].reads)))
    raise UsageError(f"{broken}: choose {', or '.join(dict.fromkeys(choices)) or 'other stages'}.")


def _broken(stages: Mapping[Kind, Any]) -> Rule | None:
    """Return the first rule that these stages break, or None; some kinds may be missing."""
    for rule in RULES:
        one, other = (stages.get(kind) for kind in rule.kinds)
        if one is not None and other is not None and not rule.kept(one, other):
            return rule
    return None


def _that_fit(kind: Kind, stages: Mapping[Kind, Any]) -> list[str]:
    """List the stages of one kind that fit `stages` of the other kinds."""
    return [name for name, cls in every_stage(kind).items() if _broken({**stages, kind: cls}) is None]
