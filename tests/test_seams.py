"""What the loop must carry unchanged: two spans of queries over one context, and two waves of attention."""

from __future__ import annotations

from collections.abc import Collection

from minifuse.attention.stage import PerSequenceStage
from minifuse.batching import Iteration
from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Placement, Plan, Proposal
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.execute import VirtualExecutor
from minifuse.memory import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.serve.engine import ServingEngine
from minifuse.testing.texts.models import CONTEXT, VOCAB


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
