"""What the loop must carry unchanged: two spans of queries over one context, and two waves of attention."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from helpers import CROWD, answers_of, expected_answers, make_engine, run_all

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.stage import PerSequenceStage
from minifuse.batching import Iteration
from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Layout, Placement, Plan, Proposal, Span, Work
from minifuse.core.report import KVUsage, Ran
from minifuse.core.request import Request, Sequence
from minifuse.execute import VirtualExecutor
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.kernels.operators import TORCH
from minifuse.memory import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.serve.engine import ServingEngine
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, small_model


class Forgetful(Contiguous):
    """Drops the KV of a sequence's first two tokens after each third token, as an eviction from the front would.

    They are recomputed beside the new token (Pensieve).
    """

    name = "forgetful"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.headless: set[str] = set()

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        (tail,) = super().missing(sequence)
        return (Span(0, 2), tail) if sequence.id in self.headless else (tail,)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        for work in plan.work:
            if work.stop > self.books.cached.get(work.sequence, 0):
                self.books.wrote([work])
        self.headless.difference_update(sampled)
        for name in sampled:
            if self.books.cached[name] % 3 == 0:
                self.headless.add(name)
        return self.usage()


class Spoiling(GhostRunner):
    """Overwrites the KV that memory has dropped, so that only recomputation can give the right answer."""

    memory: Forgetful

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        for name in self.memory.headless:
            offset = self.memory.books.places[name].offset
            for cache in (self.cache, self.ghost):
                cache.keys[:, offset : offset + 2] = 1e3
                cache.values[:, offset : offset + 2] = 1e3
        return super().__call__(plan, sequences)


class Timed(Contiguous):
    """Notes when it is called."""

    name = "timed"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.times: dict[str, list[float]] = {"place": [], "commit": [], "release": []}

    def place(self, proposal: Proposal, now: float) -> Placement:
        self.times["place"].append(now)
        return super().place(proposal, now)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.times["commit"].append(now)
        return super().commit(plan, sampled, now)

    def release(self, sequence: Sequence, now: float) -> None:
        self.times["release"].append(now)
        super().release(sequence, now)


class TimedIteration(Iteration):
    name = "timed_iteration"

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def commit(self, plan: Plan, now: float) -> None:
        self.times.append(now)


def test_stages_are_told_the_time() -> None:
    """A plan is placed when it begins, and committed when it ends, which is also when a finished sequence leaves."""
    memory, batching, clock = Timed(200), TimedIteration(), VirtualClock()
    executor = VirtualExecutor(clock, lambda plan: 0.25 * plan.num_tokens)
    attention = PerSequenceStage()
    engine = ServingEngine(batching, memory, attention, executor, clock, reader=TextReader(VOCAB, CONTEXT))
    for request in (
        Request("a", (1, 2), 3),
        Request("b", (3,), 2, arrival_s=0.1),
        Request("c", (4,), 1, arrival_s=9.0),
    ):
        engine.submit(request)
    steps = list(engine.run())
    ended = [step.ended_s for step in steps]
    assert memory.times["place"] == [step.started_s for step in steps] == [0.0, 0.5, 1.0, 9.0]
    assert memory.times["commit"] == batching.times == ended == [0.5, 1.0, 1.5, 9.25]
    assert memory.times["release"] == [step.ended_s for step in steps for _ in step.finished] == [1.5, 1.5, 9.25]


@pytest.mark.parametrize("model", CONFIGS)
def test_two_spans_over_one_context(model: str) -> None:
    memory, layout, clock = Forgetful(200), PerSequenceStage(), VirtualClock()
    weights = small_model(model)
    runner = Spoiling(weights, TieredStorage(weights.config, 200, weights.dtype, weights.device), layout.backend())
    runner.memory = memory
    executor = VirtualExecutor(clock, lambda plan: 1.0, runner)
    engine = ServingEngine(Iteration(), memory, layout, executor, clock, reader=TextReader(VOCAB, CONTEXT))
    requests = [Request(f"r{i}", tuple(range(3 + i, 8 + 2 * i)), 9) for i in range(3)]
    for request in requests:
        engine.submit(request)
    plans = [step.plan for step in engine.run()]
    twice = [plan for plan in plans if len(plan.work) > len({work.sequence for work in plan.work})]
    assert len(twice) >= 3
    assert {w for plan in twice for w in plan.work if w.start == 0} == {Work(r.id, 0, 2) for r in requests}
    assert answers_of(engine) == expected_answers(model, requests)


class _TwoWaves(PerSequenceStage):
    """FluidInfer's seam in miniature: the second half of the work is attended after the first."""

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        half = (len(work) + 1) // 2
        return Layout((Span(0, half), Span(half, len(work))) if len(work) > 1 else (Span(0, 1),))

    def backend(self, *where: str) -> AttentionBackend:
        return self

    def __init__(self) -> None:
        self.tensors = PerSequenceAttention(TORCH)
        self.operators = self.tensors.operators
        self.waves: list[int] = []

    def batch(self, plan: Plan, sequences: Any, cache: Any) -> Batch:
        batch = self.tensors.batch(plan, sequences, cache)
        self.waves.append(len(batch.waves))
        return batch

    def attend(self, *args: Any) -> Any:
        return self.tensors.attend(*args)


def test_two_waves_through_the_whole_engine() -> None:
    layout = _TwoWaves()
    engine = make_engine(model="llama", attention=layout)
    steps = run_all(engine, CROWD)
    assert answers_of(engine) == expected_answers("llama", CROWD)
    assert max(layout.waves) == 2
    assert [len(step.plan.waves) for step in steps] == layout.waves
    assert all([w for a, b in step.plan.waves for w in range(a, b)] == [*range(len(step.plan.work))] for step in steps)
