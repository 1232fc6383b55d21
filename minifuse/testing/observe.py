"""A run under observation: the stages at work, and everything the laws are checked against."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.errors import LawBroken, RequestRefused
from minifuse.execute import VirtualExecutor
from minifuse.execute.real import RunPlan
from minifuse.memory.storage import KVStorage
from minifuse.plan import KVUsage, Plan, Proposal, StepReport
from minifuse.request import Request, Sequence, TextLimits
from minifuse.stages import Batching, Memory
from minifuse.techniques import Stages, Technique
from minifuse.testing.ghost import GhostRunner
from minifuse.testing.models import model_config, small_model
from minifuse.testing.scenario import Scenario
from minifuse.trace import Trace

__all__ = ["Observation", "observe"]


@dataclass
class Observation:
    """What one run did. `kv_bytes` is what the KV tensors really take; None where no model ran."""

    trace: Trace
    steps: list[StepReport] = field(default_factory=list)
    answers: dict[str, Sequence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    usage_at_end: KVUsage | None = None
    kv_bytes: int | None = None


class _Watched:
    """A batching policy whose `propose` must leave memory and sequences as they are (law "pure")."""

    def __init__(self, policy: Batching) -> None:
        self.policy = policy
        self.workers = policy.workers
        self.held: dict[str, Sequence] = {}

    def receive(self, sequence: Sequence) -> None:
        self.held[sequence.id] = sequence
        self.policy.receive(sequence)

    def release(self, sequence: Sequence) -> None:
        self.held.pop(sequence.id, None)
        self.policy.release(sequence)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        before = pickle.dumps((vars(memory), self.held))
        proposal = self.policy.propose(worker, now, memory)
        if pickle.dumps((vars(memory), self.held)) != before:
            raise LawBroken("pure", f"propose at {now} changed memory or a sequence")
        return proposal


def observe(
    row: Technique,
    scenario: Scenario,
    *,
    run: RunPlan | None = None,
    cost: Callable[[Plan], float] | None = None,
    max_steps: int = 5000,
) -> Observation:
    """Run `scenario` in virtual time under `row`, checking after every step what must hold between steps.

    Args:
        run: where tokens come from; the scenario's model on ghost KV unless given.
        cost: seconds of a plan; the scenario's unless given.

    Raises:
        LawBroken: a law was broken on the way.
    """
    config = model_config(scenario.model)
    stages = Stages.of(row, scenario.capacity, scenario.settings(row))
    kv_bytes = None
    if run is None:
        model = small_model(scenario.model)
        cache = KVStorage(config, stages.memory.capacity, model.dtype, model.device)
        kv_bytes = cache.keys.nbytes + cache.values.nbytes
        run = GhostRunner(model, cache, stages.attention.backend())
    clock = VirtualClock()
    books = _Books(stages.memory.capacity)
    engine = Engine(
        _Watched(stages.batching),  # type: ignore[arg-type]  # it has what the engine calls
        stages.memory,
        stages.attention,
        _Noting(books, clock, cost or scenario.seconds, run),
        clock,
        limits=TextLimits(config.vocab_size, config.max_context),
        trace=Trace(technique=row.name),
    )
    seen = Observation(engine.trace, kv_bytes=kv_bytes)
    for prompts in scenario.asked():
        _submit(engine, prompts, seen)
    for report in engine.run():
        seen.steps.append(report)
        engine.memory.check_integrity()
        books.check(report, engine.sequences)
        if len(seen.steps) > max_steps:
            raise LawBroken("progress", f"after {max_steps} steps {len(engine.sequences)} requests are unfinished")
    seen.answers = engine.finished
    seen.usage_at_end = engine.memory.usage()
    return seen


def _submit(engine: Engine, prompts: tuple[Request, ...], seen: Observation) -> None:
    books = pickle.dumps(vars(engine.memory))
    try:
        engine.submit(*prompts)
    except RequestRefused as refusal:
        seen.refused |= dict.fromkeys((prompt.id for prompt in prompts), str(refusal))
        if pickle.dumps(vars(engine.memory)) != books:
            raise LawBroken("refuse early", f"refusing {prompts[0].id} changed memory") from None


class _Books:
    """Who has written which slot, kept from the plans alone: memory's own books are what is being checked."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: dict[str, range] = {}  # of live sequences, those being written included
        self.written: dict[str, int] = {}  # how many of them a completed plan has written
        self.running: set[str] = set()  # sequences of plans that have not completed
        self.leaving: dict[int, list[range]] = {}  # step -> slots that its moves, not yet completed, copy from

    def begin(self, plan: Plan) -> None:
        """A plan is about to run: its moves, then its work, among the plans that are running already."""
        mine = {work.sequence for work in plan.work}
        for move in plan.moves:
            name = next((name for name, slots in self.slots.items() if slots[0] == move.source), None)
            if name is None or self.slots[name][-1] >= move.source + move.num_tokens:
                raise LawBroken("conservation", f"{move} copies what is not a live sequence's whole KV")
            if name not in mine and name in self.running:
                raise LawBroken("conservation", f"{move} takes {name} from under another worker")
            self.leaving.setdefault(plan.step, []).append(self.slots[name])
            self.slots[name] = range(move.target, move.target + len(self.slots[name]))
        for work, extent in zip(plan.work, plan.extents, strict=True):
            self.slots[work.sequence] = range(extent.offset, extent.offset + work.stop)
        self.running |= mine
        owner: dict[int, str] = {}
        for step, copied in self.leaving.items():
            for work, extent in zip(plan.work, plan.extents, strict=True):
                slots = range(extent.offset + work.start, extent.offset + work.stop)
                if step != plan.step and any(set(slots) & set(others) for others in copied):
                    raise LawBroken("conservation", f"{work} writes where step {step} may still have to copy from")
        for name, slots in self.slots.items():
            for slot in slots:
                if owner.setdefault(slot, name) != name:
                    raise LawBroken("conservation", f"slot {slot} belongs to {owner[slot]} and to {name}")
                if not 0 <= slot < self.capacity:
                    raise LawBroken("budget", f"{name} uses slot {slot} of {self.capacity}")

    def check(self, report: StepReport, live: Collection[str]) -> None:
        """A plan has completed; `live` are the sequences that are still being served after it."""
        self.leaving.pop(report.plan.step, None)
        self.written |= {work.sequence: work.stop for work in report.plan.work}
        self.running.difference_update(work.sequence for work in report.plan.work)
        needed, usage = sum(self.written.values()), report.usage
        if not needed <= usage.used <= usage.reserved <= usage.capacity == self.capacity:
            raise LawBroken("conservation", f"{needed} tokens are written and needed, and memory says {usage}")
        self.slots = {name: slots for name, slots in self.slots.items() if name in live}
        self.written = {name: count for name, count in self.written.items() if name in live}


class _Noting(VirtualExecutor):
    """Tells the books of every plan that begins."""

    def __init__(self, books: _Books, clock: VirtualClock, cost: Callable[[Plan], float], run: RunPlan) -> None:
        super().__init__(clock, cost, run)
        self.books = books

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self.books.begin(plan)
        super().submit(plan, sequences, now)
