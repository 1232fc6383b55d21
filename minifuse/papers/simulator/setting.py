"""Runs the same requests for real and simulated, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.io.parsing import one_of
from minifuse.model.cells.source import CellSource
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source, resolve
from minifuse.model.text.load import TextSource
from minifuse.model.text.presets import preset
from minifuse.papers.contest import Bench
from minifuse.papers.experiment import Conditions
from minifuse.simulate.profiles import KeptProfile
from minifuse.simulate.shapes import resized
from minifuse.techniques import TECHNIQUES, Technique, for_model, serving
from minifuse.trace.running import RunningMetrics
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import Arrival, parse_lengths
from minifuse.workload.synthetic import RequestDefaults, arrive, synthetic

if TYPE_CHECKING:
    from minifuse.papers.simulator.speed import Speed
    from minifuse.simulate.machine_profile import MachineProfile

SLOTS = 16384  # of memory
PROMPTS, ANSWERS = "lognormal:40:0.8:max=384", "lognormal:20:0.8:max=128"
SHARES = (0.5, 0.8)  # of the simulated peak, by batch size: the rates at which requests arrive one by one
PERCENTS = ("p50", "p90", "p99")
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "normalized_latency": "normalized latency",
    "e2e": "whole request",
}


def unseen(name: str, hidden: int, layers: int) -> TextSource:
    """Return a transformer of a size that calibration has not seen."""
    config = resized(preset(name), hidden, layers)
    return TextSource(f"{config.family} {layers}x{hidden}", config, None)


@dataclass(frozen=True, slots=True)
class _Scale:
    transformers: tuple[tuple[str, int, int, int], ...]  # preset, hidden size, layers, requests: the smaller, the more
    batches: tuple[int, ...]
    cells: tuple[tuple[str, int], ...] = ()  # name of the model, requests
    techniques: tuple[str, ...] | None = None  # None: all


# Sizes that calibration has not seen (`minifuse.simulate.shapes`), as it has not seen batches of 5 and 12.
SCALES = {
    "quick": _Scale((("small", 192, 3, 8),), (5,), techniques=("orca", "vllm")),
    "cpu": _Scale(
        (("small", 192, 3, 40), ("small", 384, 6, 12), ("small-opt", 640, 10, 8)),
        (5, 12),
        cells=(("lstm:hidden=512", 40), ("seq2seq:hidden=512", 20), ("treelstm:hidden=512", 40)),
    ),
}


class Run(NamedTuple):
    """A run's metrics, and its iterations: step -> (plan, seconds)."""

    metrics: Mapping[str, float]
    iterations: Mapping[int, tuple[Plan, float]]
    slow: float = 1.0  # time of operators beside a real run, over their time in the profile


class Setting(Bench[Any]):
    """Serves requests with several models on this machine, and simulates them with its profile.

    Raises:
        UsageError: the scale is `paper`, or this machine has no profile of all techniques.
    """

    def __init__(self, conditions: Conditions) -> None:
        if conditions.scale == "paper":
            raise UsageError("The simulator's error is that against real runs: give --scale cpu, or quick.")
        self.scale = SCALES[conditions.scale]
        self.counts: dict[Source, int] = {
            **{unseen(name, hidden, layers): count for name, hidden, layers, count in self.scale.transformers},
            **{resolve(name): count for name, count in self.scale.cells},
        }
        self.sources = list(self.counts)
        super().__init__(conditions, self.sources[0], "cpu", real_dtype="float32")
        kept = KeptProfile(None, self.dtype, "cpu")
        profile = kept.read()
        if profile is None:
            raise UsageError(
                f"This machine has no profile in {self.dtype} to simulate it with: run minifuse calibrate --dtype "
                f"{self.dtype} first."
            )
        self.profile: MachineProfile = profile
        self.path = kept.path
        lacks = {row.name for source in self.sources for row in self._lacking(source)}
        if lacks:
            raise UsageError(
                f"{self.path} does not tell what the stages of {one_of(sorted(lacks))} cost: run minifuse calibrate "
                f"--dtype {self.dtype} for all techniques."
            )

    def _lacking(self, source: Source) -> list[Technique]:
        """Return the techniques that the profile lacks for this kind of model."""
        from minifuse.serve.calibrate import kind_of  # imports torch

        shape: Any = source.outline(self.dtype).types if isinstance(source, CellSource) else source.config
        known = self.profile.host.get(kind_of(shape), {})
        return [row for row in self._rows(source) if row.mix not in known]

    def _rows(self, source: Source) -> list[Technique]:
        """Return the techniques that are compared on a model."""
        kind = source.kind
        rows = [for_model(TECHNIQUES[name], kind) for name in self.scale.techniques or serving(kind)]
        is_tree = isinstance(source, CellSource) and source.config.kind == "treelstm"
        return [row for row in rows if not (is_tree and row.memory == "rows")]  # a row is one chain's

    def cases(self, bench: Bench[Any], speed: Speed) -> Iterator[Case]:
        """Yield every technique with every load."""
        batches = self.scale.batches
        for row in self._rows(bench.source):
            for batch in batches if row.batch_sizes else batches[:1]:
                yield Case(bench, self, speed, row, batch, None)
            for batch, share in zip(batches, SHARES, strict=False):
                yield Case(bench, self, speed, row, batch if row.batch_sizes else batches[0], share)

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return {
            **self.facts(self.profile.machine),
            "models": [source.name for source in self.sources],
            "profile": self.profile.model_dump(mode="json", include={"machine", "torch", "models", "rounds", "spread"}),
        }


@dataclass(frozen=True)
class Case:
    """One technique under one load.

    Attributes:
        share: requests arrive at this part of the simulated peak; None: all at once.
    """

    bench: Bench[Any]
    setting: Setting
    speed: Speed
    row: Technique
    batch: int
    share: float | None

    @property
    def load(self) -> str:
        return "all at once" if self.share is None else f"{self.share:.0%} of the peak"

    def _drawn(self) -> list[Request]:
        """Draw requests that arrive all at once."""
        source, count = self.bench.source, self.setting.counts[self.bench.source]
        if isinstance(source, CellSource):
            workload = request_kind(source.config.kind).workload or ""
            return cell_workload(workload, source.config.kind, count, source.config.vocab_size, seed=self._seed)
        laws, vocab = (parse_lengths(PROMPTS), parse_lengths(ANSWERS)), source.config.vocab_size
        whole = RequestDefaults(ignore_eos=True)
        return synthetic(count, *laws, vocab, seed=self._seed, defaults=whole)

    @property
    def _seed(self) -> int:
        return self.bench.conditions.seed + self.batch

    @cached_property
    def requests(self) -> list[Request]:
        """Draw the requests; the rate follows from the simulated peak."""
        drawn = self._drawn()
        if self.share is None:
            return drawn
        peak = self._serve(drawn, self.setting.profile).metrics["requests_per_s"]
        return arrive(drawn, Arrival(1 / (self.share * peak), cv=1.0), self._seed)

    def cost(self) -> Callable[[Plan], float]:
        """Return the profile's cost of a plan."""
        from minifuse.serve.calibrate import measured_cost  # imports torch

        source = self.bench.source
        shape = self.bench.model.types if isinstance(source, CellSource) else source.config
        return measured_cost(shape, self.setting.profile, self.row)

    def real(self, number: int) -> Run:
        """Serve the requests in real time."""
        before = self.speed.slowness()
        run = self._serve(self.requests)
        return run._replace(slow=(before + self.speed.slowness()) / 2)

    def simulated(self, slow: float = 1.0) -> Run:
        """Serve the requests in virtual time, on a machine slower than the profile's."""
        return self._serve(self.requests, self.setting.profile.model_copy(update={"slow": slow}))

    def _serve(self, requests: list[Request], machine: MachineProfile | None = None) -> Run:
        counted, iterations = RunningMetrics(), dict[int, tuple[Plan, float]]()

        def on_step(report: StepReport) -> None:
            if report.plan.work:
                iterations[report.plan.step] = (report.plan, report.ended_s - report.started_s)

        options = dict.fromkeys(self.row.batch_sizes, self.batch)
        self.bench.serve(self.row, requests, SLOTS, options, on_step=on_step, into=counted.read, machine=machine)
        return Run(_metrics(counted.result()), iterations)


def _metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are compared, and the completed requests per second."""
    found: dict[str, float] = dict(told["throughput"])
    for key in LATENCIES:
        if told[f"{key}_s"] is not None:
            found |= {f"{key}_{percent}": told[f"{key}_s"][percent] for percent in PERCENTS}
    return found
