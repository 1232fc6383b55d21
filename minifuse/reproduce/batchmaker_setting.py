"""What BatchMaker's experiments share: scales, the machine, requests, and serving them with one contender."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.errors import UsageError
from minifuse.metrics import compute_metrics
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.place import State
from minifuse.plan import Plan
from minifuse.reproduce.batchmaker_load import Contender, Outcome
from minifuse.reproduce.batchmaker_machine import fitted, how_fitted, scheduling_s
from minifuse.reproduce.experiment import Conditions, Say
from minifuse.request import FinishReason, Request
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.techniques import for_model, technique
from minifuse.work import Work
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import Arrival

if TYPE_CHECKING:
    from torch import Tensor

    from minifuse.model.cells.model import CellModel

__all__ = ["SCALES", "Scale", "Setting", "setting"]

STEADY = 5  # runs of what is timed by itself, at least; medians count


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


class Setting:
    """One model of cells on one machine, real or virtual; `start` makes the model.

    Args:
        requests: of the scale's, where a figure needs fewer; what is typed counts before either.

    Raises:
        UsageError: it cannot run.
    """

    def __init__(self, conditions: Conditions, kind: str, scale: Scale) -> None:
        self.conditions = conditions
        self.kind = kind
        self.scale = scale
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
        """So many of a workload, as a Poisson process of this rate (per second), the same at every rate."""
        arrival = Arrival(1 / rate, cv=1.0)  # at an infinite rate all arrive at once
        return cell_workload(workload, self.kind, count, self.source.config.vocab_size, arrival, self.conditions.seed)

    def serve(self, contender: Contender, max_batch: int, workload: str, requests: Sequence[Request]) -> Outcome:
        """Serve requests of a workload with one contender.

        Raises:
            UsageError: the contender cannot serve one of them.
            KeyboardInterrupt: Ctrl-C, which `minifuse.serve.serve` by itself survives.
        """
        model = self._batched(contender)
        options = contender.sized(max_batch)
        settings = replace(
            self.settings,
            stage_options=options,
            hardware=self._machine(contender),
            kv_memory=self._slots(contender, options, workload, requests) * model.slot_bytes,
        )
        row = for_model(technique(contender.technique), "cells")
        engine = build_engine(row, self.source, settings, self.model)
        if self.conditions.scale == "cpu":
            gc.collect()  # what the last run left should not be in this one's way; it takes longer than a quick run
        served = serve(engine, requests)
        if served.interrupted:
            raise KeyboardInterrupt
        refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
        if refused is not None:
            raise UsageError(refused)
        return Outcome.of(compute_metrics(served.trace.events()))

    def _batched(self, contender: Contender) -> CellModel:
        """The model at the granularity at which a contender batches."""
        if not contender.operators:
            return self.model
        if not hasattr(self, "_by_operator"):
            from minifuse.model.cells.by_operator import by_operator

            self._by_operator = by_operator(self.model)
            example = self.model.examples[-1]
            self.operators_per_cell = len(self._by_operator.unfold(example)) / len(self.model.unfold(example))
        return self._by_operator

    def _machine(self, contender: Contender) -> str | Hardware:
        """In virtual time, whom what costs what: the overhead of a batch of a cell is that of all its operators."""
        if not self.virtual:
            return self.settings.hardware
        machine = hardware(self.settings.hardware)
        if contender.cellular:
            return replace(machine, overhead_s=machine.overhead_s + scheduling_s())
        if contender.operators:
            return replace(machine, overhead_s=machine.overhead_s / self.operators_per_cell)
        return machine

    def _slots(self, contender: Contender, options: dict[str, Any], workload: str, requests: Sequence[Request]) -> int:
        """Slots for so many states that nobody ever waits for memory."""
        key = (workload, contender.operators)
        held = self._held.setdefault(key, [])
        model = self._batched(contender)
        held += [model.unfold(request).most_held for request in requests[len(held) :]]  # the first of them are the same
        workers: int = options.get("batching.workers", 1)
        max_batch: int = options["batching.max_batch"]
        most = 2 * max_batch * workers  # nodes of a batch, requests of a set: two at a time
        if contender.cellular:
            return sum(held[: len(requests)]) + (paper.MAX_TASKS + 1) * most
        return sum(sorted(held, reverse=True)[:most]) + most

    def cost_s(self, cell: str, rows: int) -> float:
        """Seconds of one batch of a cell on the virtual machine."""
        from minifuse.simulate.cells import CellRoofline

        work = tuple(Work(f"r{i}", 0, 1, cell) for i in range(rows))
        return CellRoofline(self.model, fitted())(Plan(0, 0, work, (State((), 0),) * rows))

    def timed(self, run: Callable[[], object]) -> float:
        """Seconds of a computation in real time, the median of several after one that does not count."""
        seconds = []
        for _ in range(max(STEADY, self.rounds) + 1):
            begun = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begun)
        return median(seconds[1:])

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
        """The conditions of everything that was measured, as plain values."""
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

    def how(self) -> str:
        """The sentence on the machine and the size of all this."""
        rounds = self.rounds
        size = (
            f"{self.source.name} in {self.settings.dtype}, {self.num_requests} requests at the highest rates and in "
            f"proportion at lower ones, a quarter at least{f', medians of {rounds} rounds' if rounds > 1 else ''}"
        )
        if self.virtual:
            return f"{size}. {how_fitted()}"
        return (
            f"{size}, real time on this machine, whose rates are its own (thesis: hidden {paper.HIDDEN} on V100s). "
            "Ratios can be compared, requests/s and ms cannot."
        )


def setting(conditions: Conditions, kind: str, **other: Any) -> Setting:
    """The setting of a scale, with what a figure wants otherwise.

    Raises:
        UsageError: it cannot run.
    """
    return Setting(conditions, kind, replace(SCALES[conditions.scale], **other))
