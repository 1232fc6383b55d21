"""What the loop must carry without being touched: two query spans over one context."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from minifuse.attention.layouts import PerSequenceLayout
from minifuse.batching import Iteration
from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.execute import VirtualExecutor
from minifuse.memory import Contiguous
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan
from minifuse.report import Ran
from minifuse.request import Request, Sequence, TextReader
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, expected_answer, small_model
from minifuse.work import Span, Work


class Forgetful(Contiguous):
    """Drops the first two tokens' KV of every sequence after each third token, as an eviction from the front would.

    They are recomputed beside the new token (Pensieve).
    """

    name = "forgetful"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.headless: set[str] = set()

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        (tail,) = super().missing(sequence)
        return (Span(0, 2), tail) if sequence.id in self.headless else (tail,)

    def commit(self, plan: Plan, sampled: Collection[str]) -> None:
        for work in plan.work:
            self.cached[work.sequence] = max(self.cached.get(work.sequence, 0), work.stop)
        self.headless.difference_update(sampled)
        for name in sampled:
            if self.cached[name] % 3 == 0:
                self.headless.add(name)


class Spoiling(GhostRunner):
    """Overwrites the KV that memory has dropped, so that only recomputing it can give the right answer."""

    memory: Forgetful

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        for name in self.memory.headless:
            offset = self.memory.extents[name].offset
            for cache in (self.cache, self.ghost):
                cache.keys[:, offset : offset + 2] = 1e3
                cache.values[:, offset : offset + 2] = 1e3
        return super().__call__(plan, sequences)


@pytest.mark.parametrize("model", CONFIGS)
def test_two_spans_over_one_context(model: str) -> None:
    memory, layout, clock = Forgetful(200), PerSequenceLayout(), VirtualClock()
    weights = small_model(model)
    runner = Spoiling(weights, KVStorage(weights.config, 200, weights.dtype, weights.device), layout.backend())
    runner.memory = memory
    executor = VirtualExecutor(clock, lambda plan: 1.0, runner)
    engine = Engine(Iteration(), memory, layout, executor, clock, reader=TextReader(VOCAB, CONTEXT))
    requests = [Request(f"r{i}", tuple(range(3 + i, 8 + 2 * i)), 9) for i in range(3)]
    for request in requests:
        engine.submit(request)
    plans = [step.plan for step in engine.run()]
    twice = [plan for plan in plans if len(plan.work) > len({work.sequence for work in plan.work})]
    assert len(twice) >= 3
    assert {w for plan in twice for w in plan.work if w.start == 0} == {Work(r.id, 0, 2) for r in requests}
    for request in requests:
        assert tuple(engine.finished[request.id].answer) == expected_answer(model, request)
