"""Cellular batching of transformers: a cell is one iteration (BatchMaker, 2.9)."""

from __future__ import annotations

from minifuse.attention.stage import PerSequenceStage
from minifuse.batching import Cellular
from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Request
from minifuse.execute import VirtualExecutor
from minifuse.memory import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.options import parse_options
from minifuse.serve.engine import ServingEngine


def test_iterations_of_a_text_are_in_flight_before_their_tokens_are_known() -> None:
    clock = VirtualClock()
    engine = ServingEngine(
        Cellular(parse_options("test", Cellular.Options, {"max_tasks": 3})),
        Contiguous(100),
        PerSequenceStage(),
        VirtualExecutor(clock, lambda plan: 1.0, lambda plan, sequences: Ran({w.sequence: (5,) for w in plan.work})),
        clock,
        reader=TextReader(10, 50),
    )
    engine.submit(Request("a", (1, 2, 3), 7, stop_ids=(9,)))
    engine.requests.receive()
    engine.dispatch()
    assert [(work.start, work.stop) for plan in _in_flight(engine) for work in plan.work] == [(0, 3), (3, 4), (4, 5)]
    steps = list(engine.run())
    assert len(steps) == 7
    assert engine.finished["a"].answer == [5] * 7
    assert not any(step.discarded for step in steps)  # the maximum length is known, and never exceeded


def _in_flight(engine: ServingEngine) -> list[Plan]:
    executor = engine.executor
    assert isinstance(executor, VirtualExecutor)
    return [plan for _, _, plan, _ in executor._running] + [plan for _, plan, _ in executor._queued]
