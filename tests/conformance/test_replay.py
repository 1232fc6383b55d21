"""Law 8 on the real clock: a run's completion times and tokens, replayed in virtual time, give the same plans."""

from __future__ import annotations

import random
import time

import pytest
from conformance.replaying import ReplayExecutor

from minifuse.core.clock import RealClock, VirtualClock
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan
from minifuse.core.report import Completion, Ran, StepReport
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import Executor, RunPlan
from minifuse.execute import RealExecutor, RunAhead, VirtualExecutor
from minifuse.execute.moving import torch_runner
from minifuse.model.text.reader import TextReader
from minifuse.serve.assembly import Stages, choose
from minifuse.serve.engine import ServingEngine
from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing.texts.models import CONFIGS, VOCAB, small_model
from minifuse.trace.log import Trace, decisions

OPTIONS = {
    "batching.max_batch": 3,
    "batching.window": 0.004,
    "batching.instances": 3,
    "batching.quantum": 0.001,
    "memory.slots": 3,
    "memory.block_size": 2,
}


def _requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            f"r{i}",
            tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))),
            rng.randint(1, 9),
            stop_ids=(3, 5),
            arrival_s=rng.choice([0.0, 0.001, 0.004, 0.009, 0.02]) + rng.choice([0.0, rng.random() * 0.02]),
        )
        for i in range(12)
    ]


def _stages(row: Technique) -> Stages:
    return choose(row, {name: value for name, value in OPTIONS.items() if name in row.option_names}).stages(60)


def _has_threads(name: str) -> bool:
    return _stages(TECHNIQUES[name]).batching.workers > 1


def _run(
    stages: Stages, executor: Executor, clock: RealClock | VirtualClock, seed: int = 1
) -> tuple[list[StepReport], bytes]:
    """The steps of a run, and its decisions."""
    config = CONFIGS["llama"]
    engine = ServingEngine(
        stages.batching,
        stages.memory,
        stages.attention,
        executor,
        clock,
        reader=TextReader(config.vocab_size, config.max_context),
        trace=Trace(),
    )
    for request in _requests(seed):
        engine.submit(request)
    steps = list(engine.run())
    return steps, decisions(engine.trace.events())


@pytest.mark.parametrize("name", serving("transformer"))
def test_a_real_run_replays_exactly(name: str) -> None:
    row = TECHNIQUES[name]
    stages, clock = _stages(row), RealClock()
    runner: RunPlan = torch_runner(small_model("llama"), stages.memory, stages.attention)
    if stages.batching.depth > 1:
        runner = RunAhead(runner)
    rng = random.Random(0)

    def busy(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        time.sleep(rng.choice([0.0, 0.002]))
        return runner(plan, sequences)

    steps, decided = _run(stages, RealExecutor(busy, clock, stages.batching.workers), clock)
    virtual = VirtualClock()
    replayed, decided_again = _run(_stages(row), ReplayExecutor(virtual, steps), virtual)
    assert decided_again == decided
    assert [step.ended_s for step in replayed] == [step.ended_s for step in steps]
    assert len(steps) >= 9  # the most tokens of an answer: each takes an iteration


class LateExecutor(VirtualExecutor):
    """Notices an arrival only when the plan that runs has ended, as a plan in the caller's thread does."""

    def wait(self, until: float | None) -> list[Completion]:
        return super().wait(None if self._running or self._queued else until)


@pytest.mark.parametrize("name", [name for name in serving("transformer") if not _has_threads(name)])
def test_an_arrival_that_is_noticed_late_changes_nothing(name: str) -> None:
    for seed in range(8):
        found = []
        for cls in (VirtualExecutor, LateExecutor):
            virtual, rng = VirtualClock(), random.Random(seed)
            seconds = [rng.choice([0.0001, 0.001, 0.0025, 0.004]) for _ in range(1000)]

            def cost(plan: Plan, seconds: list[float] = seconds) -> float:
                return seconds[plan.step]

            found.append(_run(_stages(TECHNIQUES[name]), cls(virtual, cost), virtual, seed))
        (steps, decided), (late_steps, late_decided) = found
        assert late_decided == decided
        assert late_steps == steps


def test_another_decision_is_noticed() -> None:
    row = TECHNIQUES["orca"]
    stages, clock = _stages(row), RealClock()
    runner = torch_runner(small_model("llama"), stages.memory, stages.attention)
    steps, _ = _run(stages, RealExecutor(runner, clock, stages.batching.workers), clock)
    virtual = VirtualClock()
    with pytest.raises(LawBroken, match="same in simulation"):
        _run(_stages(TECHNIQUES["serial"]), ReplayExecutor(virtual, steps), virtual)
