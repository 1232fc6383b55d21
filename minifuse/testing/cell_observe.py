"""A run of cells under observation: the stages at work, and everything the laws are checked against."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minifuse.assembly import Stages
from minifuse.cell_graph import CellGraph
from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.errors import LawBroken, RequestRefused
from minifuse.execute import VirtualExecutor
from minifuse.execute.cells import CellRunner
from minifuse.memory.state_storage import StateStorage
from minifuse.model.cells.model import CellModel
from minifuse.plan import Plan, Proposal
from minifuse.report import KVUsage, Ran, StepReport
from minifuse.request import Sequence
from minifuse.stages import Batching, Memory, RunPlan
from minifuse.techniques import Technique
from minifuse.testing.cell_books import CellBooks, NodeOf
from minifuse.testing.cell_scenario import CellScenario
from minifuse.trace import Trace

__all__ = ["CellObservation", "Said", "observe_cells", "said_before"]

Said = dict[NodeOf, int]  # the token that a node says


@dataclass
class CellObservation:
    """What one run did. `submitted_s` is when each step was decided, `said` the token of every node that says one."""

    trace: Trace
    steps: list[StepReport] = field(default_factory=list)
    answers: dict[str, Sequence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    usage_at_end: KVUsage | None = None
    submitted_s: dict[int, float] = field(default_factory=dict)
    said: Said = field(default_factory=dict)


class _Watched:
    """A batching policy whose `propose` must leave memory and sequences as they are, and no worker idle for nothing."""

    def __init__(self, policy: Batching, books: CellBooks) -> None:
        self.policy = policy
        self.books = books
        self.workers = policy.workers
        self.depth = policy.depth
        self.commit = policy.commit
        self.release = policy.release

    def receive(self, sequence: Sequence) -> None:
        self.policy.receive(sequence)
        self.books.receive(sequence)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        before = _fingerprint((vars(memory), self.books.live))
        proposal = self.policy.propose(worker, now, memory)
        if _fingerprint((vars(memory), self.books.live)) != before:
            raise LawBroken("pure", f"propose at {now} changed memory or a sequence")
        if proposal.work:
            self.books.propose(worker, proposal)
        elif not proposal.reasons:
            self.books.idle(worker)
        return proposal


class _Pickler(pickle.Pickler):
    """Graphs and tensors by identity: what a graph has found out about its own shape is no change."""

    def persistent_id(self, held: Any) -> int | None:
        return id(held) if isinstance(held, CellGraph | Tensor) else None


def _fingerprint(held: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(held)
    return file.getvalue()


class _Counted:
    """A model that counts the rows it computes, padding included."""

    def __init__(self, model: CellModel) -> None:
        self.model = model
        self.num_rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, type_name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = {len(given) for given in inputs}
        if len(rows) != 1:
            raise LawBroken("counting", f"a batch of {type_name} has inputs of {rows} rows")
        self.num_rows += rows.pop()
        return self.model.run(type_name, *inputs)


class _Runner(CellRunner):
    """Computes plans as `CellRunner` does, on storage full of rubbish, and counts the rows."""

    def __init__(self, model: CellModel, capacity: int) -> None:
        storage = StateStorage(model.fields, capacity, model.device)
        for tensor in storage.fields:
            if tensor.is_floating_point():
                tensor[:capacity] = 1e3
        self.counted = _Counted(model)
        super().__init__(self.counted, storage)  # type: ignore[arg-type]  # it has what a runner calls

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        self.counted.num_rows = 0
        ran = super().__call__(plan, sequences)
        if self.counted.num_rows != plan.num_computed:
            count = self.counted.num_rows
            raise LawBroken("counting", f"step {plan.step} computes {count} rows and counts {plan.num_computed}")
        return ran


class _Noting(VirtualExecutor):
    """Tells the books of every plan that is submitted and begins, and notes which node says what."""

    def __init__(
        self,
        books: CellBooks,
        seen: CellObservation,
        model: CellModel,
        *given: Any,
    ) -> None:
        super().__init__(*given)
        self.books = books
        self.seen = seen
        self.model = model
        self.compute, self._run = self._run, self.note

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self.books.submit(plan)
        self.seen.submitted_s[plan.step] = now
        super().submit(plan, sequences, now)

    def start(self, plan: Plan, sequences: dict[str, Sequence]) -> None:
        self.books.begin(plan)
        super().start(plan, sequences)

    def note(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        ran = self.compute(plan, sequences)
        said = {name: list(tokens) for name, tokens in ran.tokens.items()}
        for name, node, _, cell in plan.work:
            if self.model.types[cell].token_output is not None:
                if not said.get(name):
                    raise LawBroken("counting", f"step {plan.step}: node {node} of {name} says nothing")
                self.seen.said[name, node] = said[name].pop(0)
        if any(said.values()):
            raise LawBroken("counting", f"step {plan.step} says {said}, which no node does")
        return ran


def observe_cells(
    row: Technique,
    scenario: CellScenario,
    *,
    run: RunPlan | None = None,
    cost: Callable[[Plan], float] | None = None,
    max_steps: int = 2000,
) -> CellObservation:
    """Run `scenario` in virtual time under `row`, checking after every step what must hold between steps.

    Args:
        run: where tokens come from; the small model unless given.
        cost: seconds of a plan; the scenario's unless given.

    Raises:
        LawBroken: a law was broken on the way.
    """
    model, capacity, settings = scenario.model(row), scenario.capacity(row), scenario.settings(row)
    stages = Stages.of(row, capacity, settings)
    memory = stages.memory

    clock, trace = VirtualClock(), Trace(technique=row.name)
    seen = CellObservation(trace)
    books = CellBooks(row, settings, capacity)
    executor = _Noting(books, seen, model, clock, cost or scenario.seconds, run or _Runner(model, capacity))
    engine = Engine(
        _Watched(stages.batching, books),  # type: ignore[arg-type]  # it has what the engine calls
        *(memory, stages.attention, executor, clock),
        reader=model,
        trace=trace,
    )
    for request in scenario.requests:
        try:
            engine.submit(request)
        except RequestRefused as refusal:
            seen.refused[request.id] = str(refusal)
    for report in engine.run():
        seen.steps.append(report)
        books.complete(report)
        memory.check_integrity()
        if len(seen.steps) > max_steps:
            raise LawBroken("progress", f"after {max_steps} steps {len(engine.sequences)} requests are unfinished")
    seen.refused |= engine.refused
    seen.answers = {name: ended for name, ended in engine.finished.items() if name not in engine.refused}
    seen.usage_at_end = memory.usage()
    return seen


def said_before(model: CellModel, said: Mapping[NodeOf, int]) -> RunPlan:
    """A simulation: nothing is computed, and every node says what it says in `said`; -1, which no stop rule knows, if
    it is not there."""

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        tokens: dict[str, list[int]] = {}
        for name, node, _, cell in plan.work:
            if model.types[cell].token_output is not None:
                tokens.setdefault(name, []).append(said.get((name, node), -1))
        return Ran({name: tuple(told) for name, told in tokens.items()})

    return run
