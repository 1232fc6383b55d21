"""Two ranks that transfer KV beside their computing: each its own part, none before the other is done with a slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import asks, run_all

from minifuse.attention.layouts import PagedStage
from minifuse.batching import PrefillFirst
from minifuse.core.clock import RealClock
from minifuse.core.report import StepReport
from minifuse.execute import RealExecutor
from minifuse.memory import Tiered
from minifuse.model.text.load import TextSource
from minifuse.model.text.reader import TextReader
from minifuse.parallel.launch import launch
from minifuse.parallel.order import Setup
from minifuse.parallel.runner import ParallelRunner
from minifuse.serve.assembly import choose
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Memory
from minifuse.techniques import technique
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, expected_answer

TIGHT = 16
REQUESTS = [asks(f"r{i}", 1 + 3 * i % 7, 2 + i % 5, ignore_eos=True) for i in range(9)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[ParallelRunner]:
    source, attention = TextSource("llama", CONFIGS["llama"], None), PagedStage().backend("cpu", "float64")
    with launch(Setup(source, attention, TIGHT, 2, 2 * TIGHT, seed=7, dtype="float64")) as run:
        yield run


def serve_all(run: ParallelRunner, memory: Memory) -> list[StepReport]:
    clock = RealClock()
    executor = RealExecutor(run, clock, behind=run.behind)
    engine = ServingEngine(PrefillFirst(), memory, PagedStage(), executor, clock, reader=TextReader(VOCAB, CONTEXT))
    steps = run_all(engine, REQUESTS)
    assert {name: tuple(s.answer) for name, s in engine.finished.items()} == {
        request.id: expected_answer("llama", request) for request in REQUESTS
    }
    return steps


def test_overlapped_swaps(ranks: ParallelRunner) -> None:
    settings = {"memory.preemption": "swap", "memory.transfer": "overlapped", "memory.block_size": 2}
    steps = serve_all(ranks, choose(technique("vllm"), settings).stages(TIGHT).memory)
    assert {move.moment for step in steps for move in step.plan.moves if move.crosses} == {"before"}


def test_conversations(ranks: ParallelRunner) -> None:
    memory = Tiered(TIGHT, Tiered.Options(chunk=2, host=2 * TIGHT))
    steps = serve_all(ranks, memory)
    assert {move.moment for step in steps for move in step.plan.moves} == {"before", "behind"}
