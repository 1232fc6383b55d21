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
        cost: seconds of a plan; constant unless given.

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
    engine = Engine(
        _Watched(stages.batching),  # type: ignore[arg-type]  # it has what the engine calls
        stages.memory,
        stages.attention,
        VirtualExecutor(clock, cost or (lambda plan: scenario.seconds_per_step), run),
        clock,
        limits=TextLimits(config.vocab_size, config.max_context),
        workers=row.workers,
        trace=Trace(technique=row.name),
    )
    seen = Observation(engine.trace, kv_bytes=kv_bytes)
    books = _Books(engine.memory.capacity)
    for request in scenario.requests:
        _submit(engine, request, seen)
    for report in engine.run():
        seen.steps.append(report)
        engine.memory.check_integrity()
        books.check(report, engine.sequences)
        if len(seen.steps) > max_steps:
            raise LawBroken("progress", f"after {max_steps} steps {len(engine.sequences)} requests are unfinished")
    seen.answers = engine.finished
    seen.usage_at_end = engine.memory.usage()
    return seen


def _submit(engine: Engine, request: Request, seen: Observation) -> None:
    books = pickle.dumps(vars(engine.memory))
    try:
        engine.submit(request)
    except RequestRefused as refusal:
        seen.refused[request.id] = str(refusal)
        if pickle.dumps(vars(engine.memory)) != books:
            raise LawBroken("refuse early", f"refusing {request.id} changed memory") from None


class _Books:
    """Who has written which slot, kept from the plans alone: memory's own books are what is being checked."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: dict[str, range] = {}  # of live sequences

    def check(self, report: StepReport, live: Collection[str]) -> None:
        """`live` are the sequences that are still being served after the step."""
        for work, extent in zip(report.plan.work, report.plan.extents, strict=True):
            self.slots[work.sequence] = range(extent.offset, extent.offset + work.stop)
        owner: dict[int, str] = {}
        for name, slots in self.slots.items():
            for slot in slots:
                if owner.setdefault(slot, name) != name:
                    raise LawBroken("conservation", f"slot {slot} belongs to {owner[slot]} and to {name}")
                if not 0 <= slot < self.capacity:
                    raise LawBroken("budget", f"{name} uses slot {slot} of {self.capacity}")
        usage = report.usage
        if not len(owner) <= usage.used <= usage.reserved <= usage.capacity == self.capacity:
            raise LawBroken("conservation", f"{len(owner)} tokens are written and needed, and memory says {usage}")
        self.slots = {name: slots for name, slots in self.slots.items() if name in live}
