"""Small cell graphs, their work, and an engine in virtual time that serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Plan, Work
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.core.unfolded import Unfolded
from minifuse.execute import VirtualExecutor
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Attention, Batching, Memory


def chain(*cells: str) -> CellGraph:
    """Nodes one after the other, of these cells."""
    return CellGraph(tuple(Node(cell, (Output(i - 1),) if i else (7,)) for i, cell in enumerate(cells)))


def lstm(length: int) -> CellGraph:
    """A chain of one cell."""
    return chain(*["lstm"] * length)


def pair_chain(length: int) -> CellGraph:
    """A chain whose nodes read both outputs of the node before."""
    return CellGraph(tuple(Node("a", (Output(i - 1), Output(i - 1, 1)) if i else (7,)) for i in range(length)))


def tree(shape: Any) -> CellGraph:
    """The tree of nested tuples, in which anything else is a leaf."""
    nodes: list[Node] = []

    def add(part: Any) -> int:
        inputs = tuple(Output(add(child)) for child in part) if isinstance(part, tuple) else (part,)
        nodes.append(Node("internal" if isinstance(part, tuple) else "leaf", inputs))
        return len(nodes) - 1

    add(shape)
    return CellGraph(tuple(nodes))


def complete_tree(leaves: int) -> CellGraph:
    """Leaves 0 .. leaves - 1, then level by level up to the root."""
    nodes = [Node("leaf", (i,)) for i in range(leaves)]
    level = list(range(leaves))
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = list(range(len(nodes), len(nodes) + len(pairs)))
        nodes += [Node("internal", (Output(left), Output(right))) for left, right in pairs]
    return CellGraph(tuple(nodes))


def sequence_of(name: str, graph: CellGraph) -> Sequence:
    return Unfolded(Request(name, (1,)), graph=graph)


def work_of(*nodes: tuple[str, int]) -> tuple[Work, ...]:
    """The work of nodes, each given as (sequence, node)."""
    return tuple(Work(name, node, node + 1, "a") for name, node in nodes)


@dataclass
class GraphReader:
    """Reads every request as the graph of its id."""

    graphs: Mapping[str, CellGraph]

    def check(self, request: Request) -> None: ...

    def fit(self, request: Request) -> Request:
        return request

    def begin(self, request: Request) -> Sequence:
        return Unfolded(request, graph=self.graphs[request.id])


Arriving = dict[str, tuple[CellGraph, float]]  # graphs and their arrivals, by request


class Scene:
    """Requests that are cell graphs, served in virtual time by these stages."""

    def __init__(
        self,
        policy: Batching,
        memory: Memory,
        attention: Attention,
        graphs: Arriving,
        *,
        cost: Callable[[Plan], float],
        run: RunPlan = lambda plan, sequences: Ran({}),
        requests: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`requests` are further fields of some requests, by id."""
        self.graphs = {name: graph for name, (graph, _) in graphs.items()}
        self.policy, self.memory = policy, memory
        clock = VirtualClock()
        executor = VirtualExecutor(clock, cost, run)
        self.engine = ServingEngine(policy, memory, attention, executor, clock, reader=GraphReader(self.graphs))
        for name, (_, arrival_s) in graphs.items():
            self.engine.submit(Request(name, (1,), arrival_s=arrival_s, **(requests or {}).get(name, {})))
        self.steps: list[StepReport] = []

    def run(self) -> Scene:
        """Serve all requests, checking the memory's books after every step."""
        for step in self.engine.run():
            self.steps.append(step)
            self.memory.check_integrity()
        return self

    @property
    def left(self) -> dict[str, float]:
        """When each request left."""
        return {name: step.ended_s for step in self.steps for name in step.finished}

    @property
    def tasks(self) -> list[tuple[float, int, str, list[str]]]:
        """Each task in the order submitted: when it ended, its worker, its type, and the sequence of each node."""
        assert all(len({work.cell for work in step.plan.work}) == 1 for step in self.steps)
        return [
            (step.ended_s, step.plan.worker, step.plan.work[0].cell, [work.sequence for work in step.plan.work])
            for step in sorted(self.steps, key=lambda step: step.plan.step)
        ]

    @property
    def batches(self) -> list[tuple[float, float, list[str]]]:
        """Of each plan, when it began and ended, and the requests that left with it."""
        return [(step.started_s, step.ended_s, sorted(step.finished)) for step in self.steps]

    def waves(self, step: int) -> list[list[tuple[str, int]]]:
        """The nodes of each wave of one plan."""
        plan = self.steps[step].plan
        return [[(work.sequence, work.start) for work in plan.work[start:stop]] for start, stop in plan.waves]
