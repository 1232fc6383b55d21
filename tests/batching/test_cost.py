"""What an iteration costs does not depend on how many wait: lines of Python run and memory taken, not seconds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from graphs import Scene, chain, lstm
from helpers import asks, lines_of, make_engine, unit

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.batching import Cellular, GraphMerged, GraphPadded, Iteration
from minifuse.core.plan import Proposal
from minifuse.core.request import Sequence
from minifuse.memory import ChainRows, States
from minifuse.options import parse_options
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Memory

FEW, MANY = 200, 2000
STEPS = 8
LINES, BYTES = 10, 4_000  # what many waiting requests may cost more; a list of them takes 14,400 bytes more
BATCH = {"batching.max_batch": 8}
TEXTS: dict[str, tuple[str, int, dict[str, Any]]] = {  # technique, capacity, options
    "naive": ("naive", 200, {}),
    "serial": ("serial", 200, {}),
    "static": ("static", 200, BATCH),
    "dynamic": ("dynamic", 200, BATCH | {"batching.window": "0s"}),
    "orca": ("orca", 200, BATCH),
    "orca, memory full": ("orca", 24, BATCH),
    "instances": ("instances", 200, {"batching.instances": 8}),
    "instances, memory full": ("instances", 24, {"batching.instances": 8}),
    "fusion": ("fusion", 200, {"memory.slots": 8}),
    "fusion inline": ("fusion", 200, {"memory.slots": 8, "batching.preprocess": "inline"}),
    "vllm": ("vllm", 200, BATCH | {"memory.block_size": 2}),
    "vllm, evicting": ("vllm", 24, BATCH | {"memory.block_size": 2, "memory.watermark": 0.0}),
    "cellular": ("cellular", 200, BATCH | {"batching.max_tasks": 1}),
    "cellular, memory full": ("cellular", 24, BATCH | {"batching.max_tasks": 1}),
}
GRAPHS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "cellular": lambda: (_policy(Cellular), States(40), CellsStage()),
    "graph_merged": lambda: (_policy(GraphMerged), States(40), CellsStage()),
    "graph_padded": lambda: (_policy(GraphPadded), ChainRows(40), PaddedCellsStage()),
}


def _policy(policy: type[Any]) -> Any:
    return policy(parse_options("test", policy.Options, {"max_batch": 8}))


@dataclass
class Cost:
    """What some iterations took, beside the requests' arrival."""

    lines: int = 0  # of Python
    peak: int = 0  # bytes of memory that a proposal took beyond what was there before, at most
    evicted: int = 0

    @classmethod
    def of(cls, engine: ServingEngine) -> Cost:
        """Those that follow the first, in which the requests arrive."""
        cost, running, propose = cls(), engine.run(), engine.batching.propose
        next(running)

        def measured(worker: int, now: float, memory: Memory) -> Proposal:
            tracemalloc.start()
            try:
                return propose(worker, now, memory)
            finally:
                cost.peak = max(cost.peak, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()

        engine.batching.propose = measured  # type: ignore[method-assign]
        steps, cost.lines = lines_of(lambda: list(islice(running, STEPS)))
        assert len(steps) == STEPS
        assert sum(len(step.plan.admitted) for step in steps) > 1
        cost.evicted = sum(len(step.plan.evicted) for step in steps)
        return cost


def _texts(name: str, waiting: int, order: str, policy: Any = None) -> Cost:
    technique, capacity, options = TEXTS[name]
    policy_has_order = technique != "cellular"
    engine = make_engine(
        technique,
        capacity=capacity,
        settings=options | ({"batching.order": order} if policy_has_order else {}),
        batching=policy,
    )
    for i in range(waiting):
        engine.submit(asks(f"r{i:04}", 3, 3 + i % 3, priority=-i % 3))
    return Cost.of(engine)


def _graphs(name: str, waiting: int) -> Cost:
    graphs = {f"r{i:04}": (lstm(2 + i % 2) if i % 3 else chain("a", "b"), 0.0) for i in range(waiting)}
    return Cost.of(Scene(*GRAPHS[name](), graphs, cost=unit).engine)


def _same(few: Cost, many: Cost) -> bool:
    return many.lines - few.lines <= LINES and many.peak - few.peak <= BYTES


@pytest.mark.parametrize("order", ["fcfs", "priority"])
@pytest.mark.parametrize("name", TEXTS)
def test_an_iteration_costs_the_same_however_many_wait(name: str, order: str) -> None:
    few, many = _texts(name, FEW, order), _texts(name, MANY, order)
    assert _same(few, many), (few, many)
    assert few.evicted == many.evicted
    assert bool(few.evicted) == (name == "vllm, evicting")


@pytest.mark.parametrize("name", GRAPHS)
def test_an_iteration_of_graphs_costs_the_same_however_many_wait(name: str) -> None:
    few, many = _graphs(name, FEW), _graphs(name, MANY)
    assert _same(few, many), (few, many)


def test_one_more_or_one_less_costs_the_same_however_many_wait() -> None:
    def lines(waiting: int) -> int:
        policy = Iteration(Iteration.Options(order="priority"))
        sequences = [Sequence(asks(f"r{i:04}", priority=i % 3)) for i in range(waiting)]
        for sequence in sequences[1:]:
            policy.receive(sequence)
        _, received = lines_of(lambda: policy.receive(sequences[0]))
        _, released = lines_of(lambda: policy.release(sequences[waiting // 2]))
        assert len(policy.waiting) == waiting - 1
        return received + released

    few, many = lines(FEW), lines(MANY)
    assert abs(many - few) < 10  # the bisections of a sorted list
    assert many < 100


# --- the measure itself


class Sorting(Iteration):
    """Sorts all that wait, in every iteration."""

    name = "sorting"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        self.sorted = sorted(self.waiting, key=lambda sequence: sequence.request.priority)
        return super().propose(worker, now, memory)


class Copying(Iteration):
    """Copies the queue, in every iteration."""

    name = "copying"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        copied = dict(self.waiting.tickets)
        return super().propose(worker, now, memory) if copied else Proposal()


@pytest.mark.parametrize("policy", [Sorting, Copying])
def test_the_measure_sees_what_touches_all_that_wait(policy: type[Iteration]) -> None:
    def cost(waiting: int) -> Cost:
        return _texts("orca", waiting, "fcfs", policy(policy.Options(max_batch=8)))

    assert not _same(cost(FEW), cost(MANY))
