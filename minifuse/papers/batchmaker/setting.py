"""BatchMaker's experiments: scales, the machine, and serving requests with a contender."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import minifuse.papers.batchmaker.paper as paper
from minifuse.core.places import State
from minifuse.core.plan import Plan, Work
from minifuse.core.request import Request
from minifuse.execute.timing import timed
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.papers.batchmaker.contenders import CELLULAR, HostBound
from minifuse.papers.batchmaker.machine import fitted, how_fitted, scheduling_s, slowed
from minifuse.papers.contest import Bench, uncollected
from minifuse.papers.curve import Contender, Served, latencies, rate_while, steady_rate
from minifuse.papers.experiment import Conditions, Experiment, Say, Values
from minifuse.papers.page import Draw, Drawn, notes, spec
from minifuse.simulate.cost import Hardware
from minifuse.trace.running import RunningMetrics
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import Arrival

if TYPE_CHECKING:
    from torch import Tensor

    from minifuse.model.cells.model import CellModel


CALIBRATED = 1280  # trees served at once to fit the machine to the thesis' peaks: 20 sets of 64
STEADY = 5  # least number of runs of a computation that is timed by itself; the median counts


@dataclass(frozen=True, slots=True)
class Scale:
    """What a scale measures.

    `sizes` are the batch-size limits to choose from, and `choosing` requests decide. `shares` are the rates, as shares
    of the largest capacity. At low rates there are fewer requests, but at least the part `least` of them.
    """

    hidden: int
    vocab: int | None  # None: large enough that decoding is three quarters of seq2seq's work, as in the thesis
    requests: int
    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    choosing: int
    least: float = 0.25


SCALES = {
    "quick": Scale(16, 64, 24, (4, 16), (0.2, 1.2), 24),
    "cpu": Scale(paper.HIDDEN, None, 500, (64, 128, 256), (0.1, 0.25, 0.5, 0.8, 1.2), 400),
    "paper": Scale(paper.HIDDEN, paper.VOCAB, 20_000, (64, 128, 256, 512), (0.1, 0.25, 0.5, 0.8, 1.2), 20_000),
}


class Setting(Bench[CellSource]):
    """Serves requests with one model of cells on one machine, real or simulated.

    Args:
        kind: the kind of model.
        other: fields of the `Scale` that the figure replaces. The conditions take precedence over both.

    Raises:
        UsageError: these conditions cannot run.
    """

    def __init__(self, conditions: Conditions, kind: str, **other: Any) -> None:
        scale = replace(SCALES[conditions.scale], **other)
        self.kind = kind
        self.sizes, self.shares = scale.sizes, scale.shares
        self.choosing, self.least = scale.choosing, scale.least
        self.hidden = conditions.hidden or scale.hidden
        source = resolve_cells(f"{kind}:hidden={self.hidden},vocab={scale.vocab or 16 * self.hidden}")
        assert source is not None
        super().__init__(conditions, source, fitted(), virtual_dtype="float32", real_dtype="float32")
        self.num_requests = conditions.requests or scale.requests
        self.operators_per_cell = 1.0
        self.slowdown = 1.0  # of the device, compared with the machine that is fitted to the LSTM
        self.scheduling = 1.0  # seconds of scheduling and gathering, as a multiple of an LSTM task's
        self._held: dict[tuple[str, bool, int], list[int]] = {}
        self._host_node_s: dict[str, float] = {}  # contender -> seconds of the host

    @property
    def fewer(self) -> bool:
        """Whether there are fewer requests at low rates."""
        return self.least < 1

    def start(self, say: Say) -> None:
        """Make the model; in virtual time, it has no weights."""
        say(f"a model of hidden size {self.hidden}")
        device = "meta" if self.virtual else "cpu"
        self.model: CellModel = self.source.load(self.dtype, device, self.conditions.seed)
        if self.virtual and self.kind == "treelstm":
            say("fitting the machine to the peak of cellular batching")
            self.slowdown = self._capacity(CELLULAR) / paper.PEAK_14
            self.scheduling = self.slowdown

    def with_lstms_scheduling(self) -> Setting:
        """Return a setting of equal peak, where only the device is slower than the LSTM's."""
        other = copy(self)
        other.slowdown, other.scheduling = 1.0, 0.0
        device_s = 1 / other._capacity(CELLULAR)
        other.scheduling = 1.0
        scheduling_s = 1 / other._capacity(CELLULAR) - device_s
        other.slowdown = (1 / paper.PEAK_14 - scheduling_s) / device_s
        return other

    def _capacity(self, contender: Contender) -> float:
        """Return the throughput of TreeBank's trees, all at once, in batches of up to 64."""
        return self.run(contender, paper.TREE_BATCH, "treebank", CALIBRATED, math.inf, 0)["steady"]

    def host_node_s(self, contender: HostBound) -> float:
        """Return the host's seconds per node that give a contender the thesis' peak.

        A host that merges while the device computes limits the peak alone. Otherwise a set takes the time of both.

        >>> # 64 trees take 30.5 ms, and the device 16.5 ms: 14 ms for 64 x 400 operators are 0.55 us each
        """
        if contender.head not in self._host_node_s:
            device_s = 0.0
            if not contender.options["batching.overlap"]:
                free = Contender(contender.key, contender.head, contender.technique, contender.options)
                device_s = 1 / self._capacity(free)
            unfold = self._batched(contender).unfold
            trees = self.requests("treebank", CALIBRATED, 1.0, 0)
            nodes = sum(len(unfold(tree)) for tree in trees) / len(trees)
            self._host_node_s[contender.head] = (1 / contender.peak - device_s) / nodes
        return self._host_node_s[contender.head]

    def requests(self, workload: str, count: int, rate: float, number: int) -> list[Request]:
        """Make `count` requests of a round, the same at every rate.

        They arrive as a Poisson process of `rate` requests per second.
        """
        arrival = Arrival(1 / rate, cv=1.0)  # at an infinite rate all arrive at once
        seed = self.conditions.seed + number
        return cell_workload(workload, self.kind, count, self.source.config.vocab_size, arrival, seed)

    def run(self, contender: Contender, max_batch: int, workload: str, count: int, rate: float, number: int) -> Served:
        """Serve the requests of a round with one contender; errors are those of `Bench.serve`.

        Returns:
            Metrics of the run, in requests per second: `throughput` by `rate_while`, and `steady` by `steady_rate`,
            which is right for sets of equal lengths. `gathering_share` is the part of the run's time that gathering
            took.
        """
        options = contender.sized(max_batch)
        requests = self.requests(workload, count, rate, number)
        ended: list[float] = []
        counted = RunningMetrics(on_end=lambda name, life: ended.append(life.ended_s))
        self.serve(
            contender.technique,
            requests,
            self._slots(contender, options, workload, requests, number),
            options,
            into=counted.read,
            machine=self._machine(contender) if self.virtual else None,
            slot_bytes=self._batched(contender).slot_bytes,
        )
        metrics = counted.result()
        last_s = max(request.arrival_s for request in requests)
        whole: float = metrics["throughput"]["requests_per_s"]
        return {
            "throughput": rate_while(last_s, ended) or whole,
            "steady": steady_rate(ended) or whole,
            **latencies("e2e_s", lambda name, percent: float(metrics[name][f"p{percent}"])),
            "mean_batch": metrics["mean_batch_size"],
            "idle_share": metrics["tokens"]["idle_share"],
            "gathering_share": metrics["gathers"]["seconds"] / metrics["duration_s"],
        }

    def _batched(self, contender: Contender) -> CellModel:
        """Return the model of cells, or of operators if the contender batches these."""
        if not _by_operator(contender):
            return self.model
        if not hasattr(self, "_operators"):
            from minifuse.model.cells.by_operator import by_operator

            self._operators = by_operator(self.model)
            example = self.model.examples[-1]
            self.operators_per_cell = len(self._operators.unfold(example)) / len(self.model.unfold(example))
        return self._operators

    def _machine(self, contender: Contender) -> Hardware:
        """Return the simulated machine with the overhead of a contender.

        For cellular batching, scheduling and gathering are added. For a contender that batches operators, the overhead
        of a cell is divided among its operators. A host that merges graphs takes time for each node.
        """
        machine = self.machine
        if contender.technique == "cellular":
            return replace(machine, overhead_s=machine.overhead_s + self.scheduling * scheduling_s())
        if isinstance(contender, HostBound):
            machine = replace(machine, host_node_s=self.host_node_s(contender))
        if _by_operator(contender):
            return replace(machine, overhead_s=machine.overhead_s / self.operators_per_cell)
        return machine

    @property
    def machine(self) -> Hardware:
        """Return the simulated machine, without anything that a contender adds."""
        return slowed(fitted(), self.slowdown)

    def _slots(
        self, contender: Contender, options: dict[str, Any], workload: str, requests: Sequence[Request], number: int
    ) -> int:
        """Return a number of slots with which no request ever waits for memory."""
        held = self._held.setdefault((workload, _by_operator(contender), number), [])
        model = self._batched(contender)
        with uncollected():
            held += [model.unfold(request).most_held for request in requests[len(held) :]]  # the first are known
        workers: int = options.get("batching.workers", 1)
        max_batch: int = options["batching.max_batch"]
        most = 2 * max_batch * workers  # two batches of nodes, or two sets of requests, per worker
        if contender.technique == "cellular":
            return sum(held[: len(requests)]) + (paper.MAX_TASKS + 1) * most
        return sum(sorted(held, reverse=True)[:most]) + most

    def cost_s(self, cell: str, rows: int) -> float:
        """Return the seconds of one batch of a cell on the simulated machine."""
        from minifuse.simulate.cells import CellRoofline

        work = tuple(Work(f"r{i}", 0, 1, cell) for i in range(rows))
        return CellRoofline(self.model, self.machine)(Plan(0, 0, work, (State((), 0),) * rows))

    def timed(self, run: Callable[[], object]) -> float:
        """Return the median seconds of a computation, in real time."""
        return timed(run, max(STEADY, self.rounds))

    def words(self, rows: int) -> Tensor:
        """int64 [rows]: random words."""
        import torch

        generator = torch.Generator().manual_seed(self.conditions.seed)
        return torch.randint(self.source.config.vocab_size, (rows,), generator=generator)

    def zeros(self, rows: int) -> Tensor:
        """[rows, hidden]: the initial state of a recurrence."""
        import torch

        return torch.zeros(rows, self.hidden, dtype=self.model.dtype)

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        machine = self.machine if self.virtual else None
        return self.facts(
            f"{paper.MACHINE}, fitted",
            hidden=self.hidden,
            vocab=self.source.config.vocab_size,
            flops_per_s=None if machine is None else machine.wide_flops,
            overhead_s=None if machine is None else machine.overhead_s,
            requests=self.num_requests,
            paper_hidden=paper.HIDDEN,
        )

    def published(self, values: Mapping[str, Values]) -> dict[str, Values]:
        """Return the thesis' values by contender; in real time, only limits of batches."""
        if self.virtual:
            return dict(values)
        return {key: {"max_batch": one["max_batch"]} for key, one in values.items()}

    def about(self) -> tuple[str, ...]:
        """Return notes on the contenders, and on the machine that was fitted to them."""
        if self.kind != "treelstm":
            return notes("batchmaker/padded", fullest=self.virtual)
        host = [f"{1e6 * seconds:.3g} us for {head}" for head, seconds in self._host_node_s.items()]
        return notes("batchmaker/merged", setting=self, paper=paper, host=host)

    def notes(self) -> tuple[str, ...]:
        """Return notes on the machine, the size of a sweep, and how loads are measured."""
        return notes("batchmaker/setting", setting=self, paper=paper, fitted=how_fitted())


def _by_operator(contender: Contender) -> bool:
    return contender.options.get("batching.per") == "operator"


def experiment(
    number: str,
    shows: str,
    kind: str,
    takes: Sequence[str] = ("hidden", "rates", "requests"),
    other: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Draw[Setting]], Experiment]:
    """Return a decorator that turns a measuring function into a figure's experiment.

    Args:
        kind: the kind of model.
        other: by scale, the fields of `Scale` that the figure replaces, for example to take less time.
    """

    def make(conditions: Conditions) -> Setting:
        return Setting(conditions, kind, **(other or {}).get(conditions.scale, {}))

    def decorate(draw: Draw[Setting]) -> Experiment:
        def drawn(setting: Setting, say: Say) -> Drawn:
            found = draw(setting, say)
            return Drawn(found.panels, found.facts, about=setting.about(), **found.values)

        return spec("BatchMaker", number, shows, make, takes=takes, paper=paper)(drawn)

    return decorate
