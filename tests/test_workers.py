"""Several workers: each runs its own plans, and they are committed in the order in which they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers import CROWD, answers_of, asks, expected_answers, make_engine, run_all

from minifuse.attention.stage import PerSequenceStage
from minifuse.core.clock import RealClock
from minifuse.core.plan import Plan, Proposal, Reason, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute import RealExecutor
from minifuse.execute.moving import torch_runner
from minifuse.memory import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Batching, Memory
from minifuse.testing.texts.models import CONTEXT, VOCAB, small_model

LLAMA = "llama"


class Pinned(Batching):
    """Sequences are dealt out to the workers in turn, and each worker serves its own as Orca would."""

    name, Options = "pinned", object

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.waiting: list[dict[str, Sequence]] = [{} for _ in range(workers)]
        self.running: list[dict[str, Sequence]] = [{} for _ in range(workers)]
        self.received = 0

    def receive(self, sequence: Sequence) -> None:
        self.waiting[self.received % len(self.waiting)][sequence.id] = sequence
        self.received += 1

    def release(self, sequence: Sequence) -> None:
        for held in (*self.waiting, *self.running):
            held.pop(sequence.id, None)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        admit, room = [], memory.room()
        for sequence in list(self.waiting[worker].values()):
            if room.admit(sequence) is not None:
                break
            admit.append(sequence)
            self.running[worker][sequence.id] = self.waiting[worker].pop(sequence.id)
        work = [Work(s.id, *span) for s in self.running[worker].values() for span in memory.missing(s)]
        return Proposal(tuple(work), tuple(admit))


def test_two_workers_in_virtual_time() -> None:
    """Worker 1 is faster; plans complete in the order in which they end, and sequences stay with their worker."""
    seconds = [1.0, 0.4]
    engine = make_engine(model=LLAMA, batching=Pinned(2), cost=lambda plan: seconds[plan.worker])
    steps = run_all(engine, CROWD)
    assert answers_of(engine) == expected_answers(LLAMA, CROWD)
    assert [step.ended_s for step in steps] == sorted(step.ended_s for step in steps)
    owner = {w.sequence: step.plan.worker for step in steps for w in step.plan.work}
    assert owner == {request.id: i % 2 for i, request in enumerate(CROWD)}
    assert all(owner[w.sequence] == step.plan.worker for step in steps for w in step.plan.work)
    assert all(step.ended_s - step.started_s == pytest.approx(seconds[step.plan.worker]) for step in steps)
    assert engine.memory.usage().reserved == 0


def test_completion_order_by_hand() -> None:
    seconds = [1.0, 0.375]
    engine = make_engine(batching=Pinned(2), cost=lambda plan: seconds[plan.worker])
    steps = run_all(engine, [asks("slow", 1, 2), asks("quick", 1, 4)])
    assert [(step.plan.step, step.plan.worker, step.started_s, step.ended_s) for step in steps] == [
        (1, 1, 0.0, 0.375),
        (2, 1, 0.375, 0.75),
        (0, 0, 0.0, 1.0),
        (3, 1, 0.75, 1.125),
        (5, 1, 1.125, 1.5),
        (4, 0, 1.0, 2.0),
    ]


def test_plans_that_end_together_are_committed_by_step() -> None:
    engine = make_engine(batching=Pinned(3))
    steps = run_all(engine, [asks(name, 1, 2) for name in "abc"])
    assert [step.plan.step for step in steps] == [0, 1, 2, 3, 4, 5]
    assert [step.started_s for step in steps] == [0, 0, 0, 1, 1, 1]


def test_an_idle_worker_takes_what_arrives_while_another_runs() -> None:
    engine = make_engine(batching=Pinned(2), cost=lambda plan: 4.0)
    steps = run_all(engine, [asks("a", 1, 1), asks("b", 1, 1, at=1.5)])
    assert [(step.plan.worker, step.started_s, step.ended_s) for step in steps] == [(0, 0.0, 4.0), (1, 1.5, 5.5)]
    assert "wait" not in [event["event"] for event in engine.trace.events()]


class _Alarm(Pinned):
    """Worker 0 starts nothing before its alarm; worker 1 has no work and asks for no time."""

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if worker == 0 and now < 3:
            return Proposal(wake_at=3.0, reasons=(Reason("asleep", "a", "not admitted: the alarm is set"),))
        return super().propose(worker, now, memory)


def test_the_engine_wakes_for_any_idle_worker() -> None:
    engine = make_engine(batching=_Alarm(2))
    steps = run_all(engine, [asks("a", 1, 1)])
    assert [(step.plan.worker, step.started_s) for step in steps] == [(0, 3.0)]


def _threaded(run: Any, workers: int = 2) -> ServingEngine:
    memory, attention, clock = Contiguous(400), PerSequenceStage(), RealClock()
    run = run or torch_runner(small_model(LLAMA), memory, attention)
    executor = RealExecutor(run, clock, workers)
    return ServingEngine(Pinned(workers), memory, attention, executor, clock, reader=TextReader(VOCAB, CONTEXT))


def test_an_error_in_a_workers_thread_reaches_the_caller() -> None:
    def broken(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.worker == 1:
            raise ValueError("the kernel broke")
        return Ran({work.sequence: (1,) for work in plan.work})

    engine = _threaded(broken)
    try:
        with pytest.raises(ValueError, match="the kernel broke"):
            run_all(engine, [asks("a", 1, 3), asks("b", 1, 3)])
    finally:
        engine.executor.close()


class _CountingClock(RealClock):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def now(self) -> float:
        self.reads += 1
        return super().now()


def test_a_real_clock_starts_before_the_first_iteration() -> None:
    """It starts when first read; read only afterwards, the first iteration would seem to have taken no time."""
    clock, reads = _CountingClock(), []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        reads.append(clock.reads)
        return Ran({"a": (1,)})

    engine = replace(_threaded(run), clock=clock, executor=RealExecutor(run, clock))
    run_all(engine, [asks("a", 2, 2)])
    assert reads[0] >= 1
