"""Two processes that serve one model: their tokens, and the messages they send (Flover, V-D and VI-E)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import asks, make_engine, run_all

from minifuse.attention.slots import SlotsAttention
from minifuse.core.clock import RealClock
from minifuse.core.measured import measured_of
from minifuse.core.report import StepReport
from minifuse.core.request import Sampling
from minifuse.execute import RealExecutor
from minifuse.model.text.load import TextSource
from minifuse.model.text.reader import TextReader
from minifuse.parallel.launch import launch
from minifuse.parallel.messages import SimulatedMessages
from minifuse.parallel.order import Setup
from minifuse.parallel.runner import ParallelRunner
from minifuse.serve.assembly import choose
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import serve
from minifuse.simulate.ring import Ring
from minifuse.techniques import technique
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, expected_answer

CAPACITY, SIZE = 400, 2
SLOTS = {"memory.slots": 8}  # of 50 tokens


def start(name: str = "llama", size: int = SIZE, timeout_s: float = 60.0) -> ParallelRunner:
    """Ranks that serve a small model. `SlotsAttention` also reads every placement that `per_sequence` reads."""
    source = TextSource(name, CONFIGS[name], None)
    return launch(Setup(source, SlotsAttention(), CAPACITY, size, seed=7, timeout_s=timeout_s, dtype="float64"))


# `test_shard.py` has the shards of every family; here two processes serve them.
FAMILIES = ["llama", "gptj", *(pytest.param(name, marks=pytest.mark.long) for name in ("opt", "three-a-head"))]


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, ParallelRunner]]:
    """A pair of processes for each family, shared by the tests."""
    with start(request.param) as run:
        yield request.param, run


# Prompts and answers of very different lengths, one of them sampled. The next tests use the same names again.
REQUESTS = [
    asks("r0", 5, 20),
    asks("r1", 1, 4),
    asks("r2", (9, 8, 7), 30, sampling=Sampling(temperature=0.9, top_k=9, seed=3)),
    asks("r3", 12, 2),
    asks("r4", (3,), 9, ignore_eos=True),
    asks("r5", 2, 13),
]


def tokens_of(steps: list[StepReport]) -> dict[str, tuple[int, ...]]:
    answers: dict[str, tuple[int, ...]] = {}
    for step in steps:
        for name, tokens in step.tokens.items():
            answers[name] = (*answers.get(name, ()), *tokens)
    return answers


@pytest.mark.parametrize("name", ["orca", "fusion"])
def test_two_ranks_produce_the_oracles_tokens(name: str, served: tuple[str, ParallelRunner]) -> None:
    """In real time; with `fusion`, prompts are computed beside the main stream, by threads on every rank."""
    model, run = served
    stages = choose(technique(name), SLOTS if name == "fusion" else None).stages(CAPACITY)
    clock = RealClock()
    executor = RealExecutor(run, clock, stages.batching.workers)
    reader = TextReader(VOCAB, CONTEXT)
    engine = ServingEngine(stages.batching, stages.memory, stages.attention, executor, clock, reader=reader)
    answers = serve(engine, REQUESTS).answers
    for request, answer in zip(REQUESTS, answers, strict=True):
        assert answer.token_ids == expected_answer(model, request)
    assert stages.batching.workers == (2 if name == "fusion" else 1)


def simulated(model: str, step: StepReport) -> tuple[int, int]:
    """Calls and bytes of one rank, as virtual time counts them."""
    rule = SimulatedMessages(CONFIGS[model], SIZE, element=8, collectives=Ring(SIZE, 1e9, 0.0))
    return rule(step.plan, len(step.tokens))[:2]


@pytest.mark.parametrize("requests", [1, 6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_one_message_for_all_requests(served: tuple[str, ParallelRunner], shuffle: bool, requests: int) -> None:
    """The number of messages of an iteration does not depend on the requests; each has as many rows as are computed."""
    model, run = served
    engine = make_engine("fusion", capacity=CAPACITY, settings={**SLOTS, "memory.shuffle": shuffle}, run=run)
    steps = run_all(engine, REQUESTS[:requests])
    assert {step.plan.step: (measured_of(step).num_messages, measured_of(step).message_bytes) for step in steps} == {
        step.plan.step: simulated(model, step) for step in steps
    }
    assert any(step.plan.num_computed > 1 for step in steps)
    for request in REQUESTS[:requests]:
        assert tokens_of(steps)[request.id] == expected_answer(model, request)


def test_the_shuffle_shrinks_the_messages(served: tuple[str, ParallelRunner]) -> None:
    """Flover, VI-E: without it, buffers of finished requests stay in the region, and idle rows are summed."""
    model, run = served
    lengths = [30, 3, 4, 3, 5, 3, 4, 30]  # the first and the last continue, all between finish
    requests = [asks(f"r{i}", 2, n, ignore_eos=True) for i, n in enumerate(lengths)]
    sent: dict[bool, list[int]] = {}
    idle: dict[bool, int] = {}
    for shuffle in (True, False):
        settings = {**SLOTS, "memory.shuffle": shuffle, "batching.preprocess": "inline"}
        steps = run_all(make_engine("fusion", capacity=CAPACITY, settings=settings, run=run), requests)
        sent[shuffle] = [measured_of(step).message_bytes for step in steps]
        idle[shuffle] = sum(step.plan.num_idle for step in steps)
    hidden, layers = CONFIGS[model].hidden_size, CONFIGS[model].num_layers
    assert idle[True] == 0 < idle[False]
    assert sum(sent[False]) - sum(sent[True]) == idle[False] * 2 * layers * hidden * 8
    assert sum(sent[True]) < sum(sent[False]) * 0.6


def test_concurrent_instances_send_for_each_request(served: tuple[str, ParallelRunner]) -> None:
    """Flover, VI-E: an instance has a communicator of its own, and every token its own messages."""
    model, run = served
    calls = {}
    requests = [asks(f"r{i}", (i + 1,), 6, ignore_eos=True) for i in range(4)]
    for name, settings in (("instances", {"batching.instances": 4}), ("fusion", SLOTS)):
        steps = run_all(make_engine(name, capacity=CAPACITY, settings=settings, run=run), requests)
        calls[name] = sum(measured_of(step).num_messages for step in steps)
        assert tokens_of(steps) == {request.id: expected_answer(model, request) for request in requests}
    each = 2 * CONFIGS[model].num_layers + 1
    assert calls == {"instances": 4 * 6 * each, "fusion": 6 * each}
