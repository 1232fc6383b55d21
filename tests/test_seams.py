"""What the loop must carry without being touched: two query spans over one context, and cells of another kind."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import pytest

from minifuse.attention import PerSequenceLayout
from minifuse.batching import Iteration
from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.errors import RequestRefused
from minifuse.execute import VirtualExecutor
from minifuse.memory import Contiguous
from minifuse.memory.storage import KVStorage
from minifuse.options import NoOptions
from minifuse.plan import Extent, KVUsage, Placement, Plan, Proposal, Ran, Reason, Span, Work
from minifuse.request import FinishReason, Request, Sequence, TextLimits
from minifuse.testing.ghost import GhostRunner
from minifuse.testing.models import CONFIGS, CONTEXT, VOCAB, expected_answer, small_model

# --- Pensieve: the head of a context was dropped; it is recomputed beside the new token


class Forgetful(Contiguous):
    """Drops the first two tokens' KV of every sequence after each third token, as an eviction from the front would."""

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
    engine = Engine(Iteration(), memory, layout, executor, clock, limits=TextLimits(VOCAB, CONTEXT))
    requests = [Request(f"r{i}", tuple(range(3 + i, 8 + 2 * i)), 9) for i in range(3)]
    for request in requests:
        engine.submit(request)
    plans = [step.plan for step in engine.run()]
    twice = [plan for plan in plans if len(plan.work) > len({work.sequence for work in plan.work})]
    assert len(twice) >= 3
    assert {w for plan in twice for w in plan.work if w.start == 0} == {Work(r.id, 0, 2) for r in requests}
    for request in requests:
        assert tuple(engine.finished[request.id].answer) == expected_answer(model, request)


# --- BatchMaker: a request is a chain of cells; a plan is a batch of ready nodes of one type


class ChainLimits:
    """A chain has as many nodes as its request has tokens to come; there is no vocabulary and no context."""

    def check(self, request: Request) -> None:
        if request.max_new_tokens < 1:
            raise RequestRefused(f"Request {request.id!r} unfolds into an empty graph: give it a node.")


class NoKV:
    """Cells keep their state in the executor: there is nothing to place."""

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "no_kv"
    Options: ClassVar[type] = NoOptions
    offers: ClassVar[frozenset[str]] = frozenset({"extents"})
    capacity = 0

    def check(self, *prompts: Request) -> None: ...
    def commit(self, plan: Plan, sampled: Collection[str]) -> None: ...
    def release(self, sequence: Sequence) -> None: ...
    def check_integrity(self) -> None: ...

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()

    def room(self) -> Any:
        raise AssertionError("cells need no room")

    def place(self, proposal: Proposal) -> Placement:
        return Placement(tuple(Extent(0, 0) for _ in proposal.work))

    def usage(self) -> KVUsage:
        return KVUsage(0, 0, 0)


class Cellular:
    """Batches ready nodes of one type: `even` and `odd` nodes have cells of their own, the larger group goes first."""

    kind: ClassVar[str] = "batching"
    name: ClassVar[str] = "toy_cellular"
    Options: ClassVar[type] = NoOptions
    workers = 1

    def __init__(self) -> None:
        self.next: dict[str, int] = {}

    def receive(self, sequence: Sequence) -> None:
        self.next[sequence.id] = 0

    def release(self, sequence: Sequence) -> None:
        del self.next[sequence.id]

    def propose(self, worker: int, now: float, memory: Any) -> Proposal:
        ready = {cell: [name for name, node in self.next.items() if node % 2 == odd] for odd, cell in enumerate(CELLS)}
        cell = max(CELLS, key=lambda cell: len(ready[cell]))
        work = tuple(Work(name, self.next[name], self.next[name] + 1, cell) for name in ready[cell][:4])
        for name in ready[cell][:4]:
            self.next[name] += 1
        return Proposal(work, reasons=tuple(Reason("type-full", name, "not batched") for name in ready[cell][4:]))


CELLS = ("even", "odd")


class CellExecutor(VirtualExecutor):
    """Applies x + 1 in even nodes and 2 x in odd ones, and says which chains have come to their end."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, lambda plan: 1.0)
        self.state: dict[str, int] = {}

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        for work in plan.work:
            x = self.state.get(work.sequence, 0)
            self.state[work.sequence] = x + 1 if work.cell == "even" else 2 * x
        last = tuple(w.sequence for w in plan.work if w.stop == sequences[w.sequence].request.max_new_tokens)
        self._push(plan, lambda: Ran({}, ended=last), now + 1.0)


def test_a_chain_of_cells_through_the_same_loop() -> None:
    clock = VirtualClock()
    executor = CellExecutor(clock)
    engine = Engine(Cellular(), NoKV(), PerSequenceLayout(), executor, clock, limits=ChainLimits())
    lengths = {"a": 2, "b": 3, "c": 3, "d": 5, "e": 1, "f": 4}
    for name, nodes in lengths.items():
        engine.submit(Request(name, (), nodes))
    with pytest.raises(RequestRefused, match="empty graph"):
        engine.submit(Request("none", (), 0))
    steps = list(engine.run())

    def direct(nodes: int) -> int:
        x = 0
        for node in range(nodes):
            x = x + 1 if node % 2 == 0 else 2 * x
        return x

    assert executor.state == {name: direct(nodes) for name, nodes in lengths.items()}
    assert {name: s.finish_reason for name, s in engine.finished.items()} == dict.fromkeys(lengths, FinishReason.STOP)
    assert all(len({work.cell for work in step.plan.work}) == 1 for step in steps)
    assert sum(len(step.plan.work) for step in steps) == sum(lengths.values())
    for step in steps:  # everyone leaves as soon as the last cell is done
        ends = {work.sequence for work in step.plan.work if work.stop == lengths[work.sequence]}
        assert set(step.finished) == ends
