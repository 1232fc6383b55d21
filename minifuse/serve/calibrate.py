"""Measures the profile of this machine: operators by themselves, and the host beside them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from minifuse.execute.cores import OtherWork, share_cores, threads_kept
from minifuse.execute.timing import take_turns, timed
from minifuse.model.cells.source import CellSource
from minifuse.model.cells.types import CellType, matrix_weights
from minifuse.model.device import free_bytes
from minifuse.model.source import Source
from minifuse.model.text.config import ModelConfig
from minifuse.parallel.config import counts_to
from minifuse.parallel.timing import SIZES, time_collectives
from minifuse.serve.host_runs import Cost, HostSamples, Samples, fit_host, fit_together, host_run
from minifuse.serve.settings import Settings
from minifuse.simulate.cell_tables import CellTables
from minifuse.simulate.cells import MeasuredCells, kind_of_cells
from minifuse.simulate.grid import Grid
from minifuse.simulate.look_up import BeyondProfile
from minifuse.simulate.machine_profile import AttentionTables, Host, LayerTables, MachineProfile, MessageTables, Rates
from minifuse.simulate.measured import MeasuredCost, heads_of, kind_of_layer, layer_weights
from minifuse.simulate.operators import medians
from minifuse.simulate.tables import ModelTables, Taken
from minifuse.simulate.transfer_times import transfer_times
from minifuse.stages import stage
from minifuse.techniques import Technique, for_model

MAX_CONTEXT, MAX_TOKENS = 1024, 2048  # by default
BATCHES = (1, 3, 8, 24)  # requests served at once, where a technique has a batch size
RATE_ROUNDS = 5
TIGHT = 512  # slots of KV, of which the largest batch needs about three times as many


class Load(NamedTuple):
    """How many requests are served at once, in how many slots of KV; None: the default."""

    batch: int
    slots: int | None = None


def loads_of(row: Technique) -> list[Load]:
    """Return the loads with which the host is measured.

    Techniques that give up blocks when memory is short are also measured with short memory.
    """
    loads = [Load(batch) for batch in BATCHES]
    in_blocks = {"memory.block_size", "memory.chunk"} & row.option_names
    return [*loads, Load(BATCHES[-1], TIGHT)] if in_blocks else loads


@dataclass(frozen=True)
class Calibration:
    """What is measured, and how often.

    Attributes:
        hosts: the models with which the host is measured; None: all.
        max_context: tokens of the longest context.
        minutes: no round begins later; the first is always measured.
        ranks: messages are measured among up to so many processes; 1: they are not.
    """

    sources: Sequence[Source]
    techniques: Sequence[Technique]
    dtype: str = "float32"
    device: str = "cpu"
    rounds: int = 3
    max_context: int = MAX_CONTEXT
    minutes: float | None = None
    say: Callable[[str], None] = field(default=lambda text: None)
    hosts: Sequence[Source] | None = None
    ranks: int = 1

    def measure(self, machine: str) -> MachineProfile:
        """Measure every model in each round.

        A shared machine's slow minutes then fall on one round of each model, not on all rounds of one.

        Raises:
            MachineError: a model, or KV for the longest contexts, does not fit the device; or processes cannot
                exchange messages.
        """
        others, parts = OtherWork(), [self._part(source) for source in self.sources]
        messages = self._messages() if self.ranks > 1 else None
        until_s = math.inf if self.minutes is None else time.perf_counter() + 60 * self.minutes
        num_rounds = 0
        while num_rounds < self.rounds and not (num_rounds and time.perf_counter() > until_s):
            num_rounds += 1
            for part in parts:
                self.say(f"round {num_rounds} of {self.rounds}: {part.source.name}")
                with threads_kept():
                    self._measure(part, num_rounds)
        texts = [part for part in parts if part.is_text]
        kinds = dict.fromkeys(kind_of_layer(part.config) for part in texts)
        profile = MachineProfile(
            machine=machine,
            device=self.device,
            dtype=self.dtype,
            torch=torch.__version__,
            models={part.source.name: part.threads for part in parts},
            rounds=num_rounds,
            spread=median(spread for part in parts for spread in part.spreads()),
            others=others.cores() or 0.0,
            rates=rates(self.dtype, self.device),
            kinds={
                kind: _layer_tables([part for part in texts if kind_of_layer(part.config) == kind]) for kind in kinds
            },
            cells=_cell_tables([part for part in parts if not part.is_text]),
            host={},
            transfers=transfer_times(self.device) if self.device == "cuda" else None,
            messages=messages,
        )
        return profile.model_copy(update={"host": dict(self._hosts(profile, parts))})

    def _messages(self) -> MessageTables:
        """Time collectives among some numbers of processes, up to `ranks`."""
        counts = counts_to(self.ranks)
        found: dict[str, list[float]] = {"sum": [], "gather": []}
        for count in counts:
            self.say(f"messages among {count} processes")
            for name, seconds in time_collectives(count, self.device).items():
                found[name] += seconds
        axes = {"ranks": counts, "bytes": SIZES}
        sums, gathers = (Grid(axes=axes, seconds=tuple(found[name])) for name in ("sum", "gather"))
        return MessageTables(sums=sums, gathers=gathers)

    def _part(self, source: Source) -> _Part:
        """Prepare one model's part."""
        context = min(self.max_context, source.config.max_context or self.max_context)
        rows = [for_model(row, source.kind) for row in self.techniques if source.kind in row.serves]
        if isinstance(source, CellSource):
            return _Part(source, rows, CellTables(source.outline(self.dtype).types), context)
        config: Any = source.config
        stages: dict[str, Any] = {row.attention: stage("attention", row.attention)() for row in rows}
        return _Part(source, rows, ModelTables(config, stages, context, MAX_TOKENS), context)

    def _measure(self, part: _Part, number: int) -> None:
        """Measure one model once. The weights are freed afterwards, and the KV."""
        source = part.source
        share_cores(source.config.num_parameters, None)
        model: Any = source.load(self.dtype, self.device)
        part.threads = torch.get_num_threads()
        runs: dict[Any, Callable[[int], Any]] = part.tables.runs(model)
        for row in part.rows if self.hosts is None or source in self.hosts else ():
            for load in loads_of(row):
                memory = load.slots and load.slots * source.slot_bytes(self.dtype)
                settings = Settings(dtype=self.dtype, device=self.device, kv_memory=memory)
                runs[row.name, load] = host_run(row, source, model, settings, load.batch, part.context)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BeyondProfile)  # of the profile in the cache, by which pensieve evicts
            for key, found in take_turns(runs, 1, first=number).items():
                part.taken.setdefault(key, []).extend(found)

    def _hosts(self, profile: MachineProfile, parts: Sequence[_Part]) -> Iterator[tuple[str, dict[str, Host]]]:
        """Yield each kind of model with the host's part of each mix of stages."""
        for kind in dict.fromkeys(part.kind for part in parts if part.served):
            alike = [part for part in parts if part.kind == kind]
            rows = {row.mix: row for part in alike for row in part.served}
            yield kind, {mix: _host(profile, alike, row) for mix, row in rows.items()}


@dataclass
class _Part:
    """What is measured of one model.

    Attributes:
        rows: the techniques, with the stages that serve such a model.
        taken: of each computation, its seconds, or its iterations, in every round.
    """

    source: Source
    rows: Sequence[Technique]
    tables: Any  # ModelTables or CellTables
    context: int
    threads: int = 1
    taken: dict[Any, list[Any]] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        return self.source.config

    @property
    def is_text(self) -> bool:
        return self.source.kind == "transformer"

    @property
    def kind(self) -> str:
        """Return the kind of model; the host's part is the same within a kind."""
        return kind_of(self.tables.shape)

    @property
    def served(self) -> list[Technique]:
        """Return the techniques with which the host was measured."""
        return [row for row in self.rows if (row.name, loads_of(row)[0]) in self.taken]

    @cached_property
    def typical(self) -> Taken:
        """Return the median seconds of each part of an iteration, or of a step."""
        return {key: medians(found) for key, found in self.taken.items() if isinstance(found[0], Mapping)}

    @cached_property
    def attention(self) -> dict[str, AttentionTables]:
        """Return the tables of each attention stage."""
        return {name: self.tables.attention(name, self.typical) for name in self.tables.stages}

    def spreads(self) -> Iterator[float]:
        """Yield the interquartile range of the seconds of each iteration, or step, over their median."""
        for key in self.typical:
            seconds = [sum(found.values()) for found in self.taken[key]]
            if len(seconds) > 1:
                low, middle, high = quantiles(seconds, n=4, method="inclusive")
                yield (high - low) / middle
            else:
                yield 0.0


def _host(profile: MachineProfile, parts: Sequence[_Part], row: Technique) -> Host:
    """Fit the host's part of one mix, and its speed with several workers."""
    served = [part for part in parts if row.mix in {one.mix for one in part.served}]

    def samples(part: _Part, host: Host) -> Samples:
        cost = measured_cost(part.tables.shape, profile.model_copy(update={"host": {part.kind: {row.mix: host}}}), row)
        rows = [one for one in part.served if one.mix == row.mix]
        return [(cost, HostSamples(part.taken[one.name, load])) for one in rows for load in loads_of(one)]

    host = Host(seconds=fit_host([sample for part in served for sample in samples(part, Host(seconds={}))]))
    by_width: dict[int, list[Any]] = {}
    for part in served if served[0].is_text else ():
        by_width.setdefault(layer_weights(part.config), []).extend(samples(part, host))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondProfile)  # of terms that no iteration by itself has
        speeds = {weights: fit_together(found) for weights, found in by_width.items()}
    grids = {weights: Grid(axes={}, seconds=(speed,)) for weights, speed in speeds.items() if speed is not None}
    return host.model_copy(update={"together": stacked("weights", grids) if grids else None})


def kind_of(shape: ModelConfig | Mapping[str, CellType]) -> str:
    """Return the kind of model under which a profile has the host's part.

    Args:
        shape: see `measured_cost`.
    """
    return kind_of_layer(shape) if isinstance(shape, ModelConfig) else kind_of_cells(shape)


def measured_cost(shape: ModelConfig | Mapping[str, CellType], profile: MachineProfile, row: Technique) -> Cost:
    """Return the cost of a model's plans under a technique, as the profile tells it.

    Args:
        shape: a transformer's configuration, or the types of cells by name.
    """
    if isinstance(shape, ModelConfig):
        return MeasuredCost(shape, profile, row.attention, row.mix)
    return MeasuredCells(shape, profile, row.mix)


def _layer_tables(parts: Sequence[_Part]) -> LayerTables:
    """Join the tables of transformers with one kind of layer."""

    def joined(width: Callable[[ModelConfig], int], name: str, grid: Callable[[_Part], Grid]) -> Grid:
        return stacked(name, {width(part.config): grid(part) for part in parts})

    def of(stage: str, width: str, table: str) -> Grid:
        return joined(attrgetter(width), width, lambda part: getattr(part.attention[stage], table))

    def of_tokens(name: str) -> Callable[[_Part], Grid]:
        return lambda part: part.tables.by_tokens(name, part.typical)

    attention = {
        name: AttentionTables(
            decode=of(name, "kv_size", "decode"),
            prefill=of(name, "q_size", "prefill"),
            index_decode=of(name, "kv_size", "index_decode"),
            index_prefill=of(name, "kv_size", "index_prefill"),
            shared=of(name, "q_size", "shared"),
            index_shared=of(name, "kv_size", "index_shared"),
            ragged=median(part.attention[name].ragged for part in parts),
        )
        for name in parts[0].attention
    }
    return LayerTables(
        heads=tuple(sorted({heads_of(part.config) for part in parts})),
        embed=joined(attrgetter("hidden_size"), "hidden_size", of_tokens("embed")),
        layers=joined(layer_weights, "weights", of_tokens("layer")),
        head=joined(attrgetter("head_weights"), "weights", lambda part: part.tables.head(part.typical)),
        attention=attention,
    )


def _cell_tables(parts: Sequence[_Part]) -> dict[str, Grid]:
    """Join the steps of models of cells, by the name of the cell."""
    steps: dict[str, dict[int, Grid]] = {}
    for part in parts:
        for name, grid in part.tables.steps(part.typical).items():
            steps.setdefault(name, {})[matrix_weights(part.tables.shape[name].cell)] = grid
    return {name: stacked("weights", grids) for name, grids in steps.items()}


def stacked(width: str, grids: Mapping[int, Grid]) -> Grid:
    """Join grids of the same axes along a new first axis.

    >>> grid = Grid(axes={"rows": (1, 2)}, seconds=(1, 2))
    >>> stacked("width", {8: grid, 4: grid}).axes
    {'width': (4.0, 8.0), 'rows': (1.0, 2.0)}
    """
    widths = sorted(grids)
    seconds = [second for one in widths for second in grids[one].seconds]
    return Grid(axes={width: tuple(widths), **grids[widths[0]].axes}, seconds=tuple(seconds))


def rates(dtype: str, device: str) -> Rates:
    """Measure how fast memory is read, and how fast a large product is computed."""
    kind = getattr(torch, dtype)
    numbers = torch.ones(2**26, dtype=kind, device=device)
    square = torch.ones(2048, 2048, dtype=kind, device=device)
    return Rates(
        bandwidth=numbers.numel() * numbers.element_size() / timed(numbers.sum, RATE_ROUNDS, device),
        flops=2 * 2048**3 / timed(lambda: square @ square, RATE_ROUNDS, device),
        memory=float(free_bytes(device) or 2**34),
    )
