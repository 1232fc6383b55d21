"""What BatchMaker's experiments share: scales, the machine, requests, and serving them with one contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.core.places import State
from minifuse.core.plan import Plan, Work
from minifuse.core.request import Request
from minifuse.model.cells.config import CellConfig
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.reproduce.contest import serve_all
from minifuse.reproduce.curve import Contender, Outcome
from minifuse.reproduce.experiment import Conditions, Experiment, Finding, Run, Say
from minifuse.reproduce.machine import fit_arithmetic
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.simulate.timing import timed
from minifuse.trace.metrics import compute_metrics
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import Arrival

if TYPE_CHECKING:
    from torch import Tensor

    from minifuse.model.cells.model import CellModel


STEADY = 5  # runs of what is timed by itself, at least; medians count
BY_FIG_3 = f"{paper.MAX_BATCH}, by Fig. 2.3"  # how the thesis chose its largest batch


@dataclass(frozen=True, slots=True)
class Scale:
    """`sizes` are the largest batches to choose from, `shares` the rates as shares of the largest capacity."""

    hidden: int
    vocab: int | None  # None: so large that decoding is three quarters of seq2seq's work, as in the thesis
    clock: Literal["real", "virtual"]
    requests: int
    sizes: tuple[int, ...]
    shares: tuple[float, ...]


SCALES = {
    "quick": Scale(16, 64, "real", 24, (4, 16), (0.2, 1.2)),
    "cpu": Scale(paper.HIDDEN, None, "real", 800, (32, 64, 128, 256), (0.1, 0.25, 0.5, 0.8, 1.0, 1.2)),
    "paper": Scale(paper.HIDDEN, paper.VOCAB, "virtual", 6000, (64, 128, 256, 512), (0.1, 0.25, 0.4, 0.6, 0.8, 1, 1.2)),
}


@cache
def fitted() -> Hardware:
    """The V100 on which one LSTM step takes 185 us at batch 64 and 784 us at 512, hidden 1024, as in the thesis.

    >>> f"{fitted().wide_flops / 1e12:.1f} TFLOPS, {fitted().overhead_s * 1e6:.0f} us"
    '12.5 TFLOPS, 99 us'
    """
    return fit_arithmetic(hardware(paper.MACHINE), 2 * CellConfig("lstm", paper.HIDDEN).sizes["lstm"], paper.STEP_US)


def scheduling_s() -> float:
    """Seconds that scheduling and gathering add to a task of BatchMaker: 250 us instead of 185 (2.7.3)."""
    return (paper.TASK_US - paper.STEP_US[paper.SMALL_BATCH_7]) * 1e-6


def how_fitted() -> str:
    """The note on what was fitted to what."""
    machine, sheet = fitted(), hardware(paper.MACHINE)
    assert machine.wide_flops is not None
    assert sheet.wide_flops is not None
    times = " and ".join(f"{us:g} us at batch {batch}" for batch, us in paper.STEP_US.items())
    return (
        f"Virtual time of a V100: two numbers are fitted to the two times that the thesis gives of an LSTM step, "
        f"{times} (hidden {paper.HIDDEN}, float32): {machine.wide_flops / 1e12:.1f} TFLOPS "
        f"({machine.wide_flops / sheet.wide_flops:.0%} of the data sheet's) and {machine.overhead_s * 1e6:.0f} us for "
        f"each batch. A task of cellular batching takes {scheduling_s() * 1e6:.0f} us more, as the thesis says "
        "scheduling and gathering do; what the baselines need beside computing is not modelled, which favours them."
    )


class Setting:
    """One model of cells on one machine, real or virtual; `start` makes the model.

    Args:
        other: values of the `Scale` that a figure needs to differ; the conditions count before either.

    Raises:
        UsageError: it cannot run.
    """

    def __init__(self, conditions: Conditions, kind: str, **other: Any) -> None:
        scale = replace(SCALES[conditions.scale], **other)
        self.conditions = conditions
        self.kind = kind
        self.sizes, self.shares = scale.sizes, scale.shares
        self.hidden = conditions.hidden or scale.hidden
        vocab = scale.vocab or 16 * self.hidden
        source = resolve_cells(f"{kind}:hidden={self.hidden},vocab={vocab}")
        assert source is not None
        self.source: CellSource = source
        self.num_requests = conditions.requests or scale.requests
        self.settings = Settings(
            dtype="float32" if conditions.dtype == "auto" else conditions.dtype,
            clock=scale.clock,
            hardware=fitted() if scale.clock == "virtual" else "cpu",
            seed=conditions.seed,
        )
        self.rounds = 1 if scale.clock == "virtual" else conditions.rounds  # virtual time is the same every time
        self.operators_per_cell = 1.0
        self._held: dict[tuple[str, bool], list[int]] = {}

    @property
    def virtual(self) -> bool:
        return self.settings.clock == "virtual"

    def start(self, say: Say) -> None:
        """Make the model; in virtual time it has no weights."""
        say(f"a model of hidden size {self.hidden}")
        device = "meta" if self.virtual else "cpu"
        self.model: CellModel = self.source.load(self.settings.dtype, device, self.conditions.seed)

    def requests(self, workload: str, count: int, rate: float) -> list[Request]:
        """`count` requests of a workload, as a Poisson process of this rate (per second), the same at every rate."""
        arrival = Arrival(1 / rate, cv=1.0)  # at an infinite rate all arrive at once
        return cell_workload(workload, self.kind, count, self.source.config.vocab_size, arrival, self.conditions.seed)

    def run(self, contender: Contender, max_batch: int, workload: str, requests: Sequence[Request]) -> Outcome:
        """Serve requests of a workload with one contender; raises as `serve_all` does."""
        options = contender.sized(max_batch)
        slot_bytes = self._batched(contender).slot_bytes
        settings = replace(
            self.settings,
            stage_options=options,
            hardware=self._machine(contender),
            kv_memory=self._slots(contender, options, workload, requests) * slot_bytes,
        )
        collect = self.conditions.scale == "cpu"  # which takes longer than a quick run
        trace, _ = serve_all(contender.technique, self.source, settings, self.model, requests, collect)
        return Outcome.of(compute_metrics(trace.events()))

    def _batched(self, contender: Contender) -> CellModel:
        """The model at the granularity at which a contender batches."""
        if not _by_operator(contender):
            return self.model
        if not hasattr(self, "_operators"):
            from minifuse.model.cells.by_operator import by_operator

            self._operators = by_operator(self.model)
            example = self.model.examples[-1]
            self.operators_per_cell = len(self._operators.unfold(example)) / len(self.model.unfold(example))
        return self._operators

    def _machine(self, contender: Contender) -> str | Hardware:
        """The machine as a contender uses it in virtual time.

        Cellular batching pays for scheduling and gathering; the overhead of a batch of a cell is that of all its
        operators together, for a contender that batches operators.
        """
        if not self.virtual:
            return self.settings.hardware
        machine = hardware(self.settings.hardware)
        if contender.technique == "cellular":
            return replace(machine, overhead_s=machine.overhead_s + scheduling_s())
        if _by_operator(contender):
            return replace(machine, overhead_s=machine.overhead_s / self.operators_per_cell)
        return machine

    def _slots(self, contender: Contender, options: dict[str, Any], workload: str, requests: Sequence[Request]) -> int:
        """Slots for so many states that no request ever waits for memory."""
        held = self._held.setdefault((workload, _by_operator(contender)), [])
        model = self._batched(contender)
        held += [model.unfold(request).most_held for request in requests[len(held) :]]  # the first of them are the same
        workers: int = options.get("batching.workers", 1)
        max_batch: int = options["batching.max_batch"]
        most = 2 * max_batch * workers  # nodes of a batch, requests of a set: two at a time
        if contender.technique == "cellular":
            return sum(held[: len(requests)]) + (paper.MAX_TASKS + 1) * most
        return sum(sorted(held, reverse=True)[:most]) + most

    def cost_s(self, cell: str, rows: int) -> float:
        """Seconds of one batch of a cell on the virtual machine."""
        from minifuse.simulate.cells import CellRoofline

        work = tuple(Work(f"r{i}", 0, 1, cell) for i in range(rows))
        return CellRoofline(self.model, fitted())(Plan(0, 0, work, (State((), 0),) * rows))

    def timed(self, run: Callable[[], object]) -> float:
        """Median seconds of a computation in real time."""
        return timed(run, max(STEADY, self.rounds))

    def words(self, rows: int) -> Tensor:
        """int64 [rows]: random words."""
        import torch

        generator = torch.Generator().manual_seed(self.conditions.seed)
        return torch.randint(self.source.config.vocab_size, (rows,), generator=generator)

    def zeros(self, rows: int) -> Tensor:
        """[rows, hidden]: the state that a recurrence begins with."""
        import torch

        return torch.zeros(rows, self.hidden, dtype=self.model.dtype)

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        machine = hardware(self.settings.hardware) if self.virtual else None
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "hidden": self.hidden,
            "vocab": self.source.config.vocab_size,
            "dtype": self.settings.dtype,
            "clock": self.settings.clock,
            "hardware": None if machine is None else f"{paper.MACHINE}, fitted",
            "flops_per_s": None if machine is None else machine.wide_flops,
            "overhead_s": None if machine is None else machine.overhead_s,
            "requests": self.num_requests,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_hidden": paper.HIDDEN,
        }

    def notes(self) -> tuple[str, ...]:
        """The machine and the size of a load sweep, and what holds for every figure of latency against throughput."""
        size = (
            f"{self.source.name} in {self.settings.dtype}, {self.num_requests} requests at the highest rates and in "
            "proportion at lower ones, a quarter at least"
            f"{f', medians of {self.rounds} rounds' if self.rounds > 1 else ''}"
        )
        how = (
            how_fitted()
            if self.virtual
            else f"real time on this machine, whose rates are its own (thesis: hidden {paper.HIDDEN} on V100s). Ratios "
            "can be compared, requests/s and ms cannot."
        )
        return (
            f"{size}{'. ' if self.virtual else ', '}{how}",
            "Requests arrive as a Poisson process, the same for every contender, at growing rates until a contender's "
            "throughput grows no more. Throughput counts from the first arrival to the end of the last request. A peak "
            "is the highest throughput at any rate, or with all requests at once. At a run's end batches are small, "
            "which costs most where requests are few and spread over many buckets: the thesis has 100K. Words are made "
            "up, and lengths follow the laws of the thesis' data (see minifuse.workload.cells).",
        )


def _by_operator(contender: Contender) -> bool:
    return contender.options.get("batching.per") == "operator"


def experiment(
    number: str,
    shows: str,
    kind: str,
    draw: Callable[[Setting, Say], Finding],
    takes: Sequence[str] = ("hidden", "rates", "requests"),
    other: Mapping[str, Mapping[str, Any]] | None = None,
) -> Experiment:
    """The experiment of a figure with a model of this kind.

    Args:
        other: by scale, what differs from it where it would take too long, or the figure needs another size.
    """

    def prepare(conditions: Conditions) -> Run:
        return partial(draw, Setting(conditions, kind, **(other or {}).get(conditions.scale, {})))

    return Experiment("BatchMaker", number, shows, prepare, frozenset(takes))
