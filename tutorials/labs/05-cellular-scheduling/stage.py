"""Cellular batching whose scheduling is the student's, in an engine for graphs of cells that takes no weights."""

from minifuse.batching.cellular import Cellular
from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Proposal, Work
from minifuse.core.report import Ran
from minifuse.core.request import Request, Sequence
from minifuse.core.unfolded import Unfolded
from minifuse.execute.virtual import VirtualExecutor
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.serve.engine import ServingEngine
from minifuse.stages import register, stage
from minifuse.trace.log import Trace

__all__ = ["Fair", "Students", "ask_schedule", "chain", "serve_graphs", "tree"]

TASKS = list[list[tuple[int, int]]]


def ask_schedule(scheduler, worker, types, max_tasks, kinds) -> list:
    """The student's tasks, as far as their form goes: of one type each, not empty, not too large, nor too many.

    Args:
        kinds: the type of each subgraph that has been added.
    """
    tasks = scheduler("schedule", worker, form=TASKS)
    if len(tasks) > max_tasks:
        raise StudentFault(f"Scheduler.schedule({worker}) returned {len(tasks)} tasks: max_tasks is {max_tasks}.")
    for task in tasks:
        if unknown := [number for number, _ in task if number not in kinds]:
            raise StudentFault(f"Scheduler.schedule({worker}) has subgraph {unknown[0]}, which was never added.")
        of = {kinds[number] for number, _ in task}
        if len(of) != 1:
            what = f"nodes of the types {', '.join(sorted(of))}" if of else "no nodes"
            raise StudentFault(f"Scheduler.schedule({worker}) returned a task with {what}: give nodes of one type.")
        most = types[next(iter(of))]["max"]
        if len(task) > most:
            raise StudentFault(f"Scheduler.schedule({worker}) returned a task of {len(task)} nodes: max is {most}.")
    return tasks


@register
class Students(OfStudent, Cellular):
    """Cellular batching, whose tasks are the student's. `begin` gives it the types."""

    name = "lab-cellular"

    def begin(self, types: dict) -> None:
        self.cells = types
        self.parts = []  # number -> subgraph
        self.reads = []  # number -> of each of its nodes, those in it that it reads
        self.given = set()  # (number, node) that are or were in a task
        plain = {name: {key: one[key] for key in ("min", "max", "priority")} for name, one in types.items()}
        self.scheduler = self.work.make("Scheduler", plain, self.depth)

    def enqueue(self, subgraph) -> None:
        number = len(self.parts)
        self.parts.append(subgraph)
        nodes = [*subgraph.missing]
        reads = [(node, reader) for node in nodes for reader in subgraph.readers[node] if reader in subgraph.missing]
        self.reads.append({node: [source for source, reader in reads if reader == node] for node in nodes})
        self.scheduler("add", number, subgraph.cell, nodes, reads, form=None)

    def propose(self, worker: int, now: float, memory) -> Proposal:
        if not self.submitted[worker]:
            kinds = {number: one.cell for number, one in enumerate(self.parts)}
            self.turns[worker] = iter(ask_schedule(self.scheduler, worker, self.cells, self.depth, kinds))
        task = next(self.turns[worker], None)
        if task is None:
            return Proposal()
        work, admit = [], []
        self.check(worker, task)
        for number, node in task:
            subgraph = self.parts[number]
            sequence = subgraph.sequence
            if self.waiting.pop(sequence.id, None) is not None:
                admit.append(sequence)
            work.append(Work(sequence.id, node, node + 1, subgraph.cell))
        self.submitted[worker].append(task)
        return Proposal(tuple(work), tuple(admit))

    def check(self, worker: int, task: list) -> None:
        """Raise `StudentFault` unless these are nodes whose inputs are there, and each is new."""
        for number, node in task:
            if node not in self.reads[number] or (number, node) in self.given:
                what = "a second time" if (number, node) in self.given else "and it has no such node"
                raise StudentFault(f"Scheduler.schedule({worker}) has node {node} of subgraph {number} {what}.")
            for source in self.reads[number][node]:
                if (number, source) not in self.given:
                    raise StudentFault(
                        f"Scheduler.schedule({worker}) has node {node} of subgraph {number}, which reads node "
                        f"{source}: that is in no earlier task."
                    )
            if task.count([number, node]) > 1:
                raise StudentFault(f"Scheduler.schedule({worker}) has node {node} of subgraph {number} twice.")
        self.given |= {(number, node) for number, node in task}

    def commit(self, plan, now: float) -> None:
        for number, node in self.submitted[plan.worker].popleft():
            self.processor.computed(self.parts[number].sequence, [node])
        self.scheduler("completed", plan.worker, form=None)

    def release(self, sequence) -> None:
        self.waiting.pop(sequence.id, None)
        self.processor.release(sequence)


@register
class Fair(OfStudent, Cellular):
    """Cellular batching, where `choose` names the type of the next task, one task a turn.

    `longest_s` is the longest that a node has waited, from when it was ready until it was in a task.
    """

    name = "lab-fair"

    def begin(self, types: dict) -> None:
        self.cells, self.clock, self.longest_s = types, None, 0.0
        self.since: dict = {}  # (subgraph, node) -> when it was ready
        self.max_batches = {name: one["max"] for name, one in types.items()}

    def note(self, subgraph) -> None:
        for node in subgraph.ready:
            self.since.setdefault((subgraph, node), self.clock.now())

    def enqueue(self, subgraph) -> None:
        self.note(subgraph)
        super().enqueue(subgraph)

    def schedule(self, worker, memory, reasons):
        now = self.clock.now()
        told = []
        for name, one in self.types.items():
            if ready := one.num_ready_nodes(worker):
                parts = [part for queue in (one.started, one.newcomers) for part in queue]
                oldest = min(self.since[part, node] for part in parts for node in part.ready)
                cell = self.cells[name]
                told.append(
                    {
                        "name": name,
                        "ready": ready,
                        "max": cell["max"],
                        "priority": cell["priority"],
                        "oldest_s": now - oldest,
                        "seconds": [cell["seconds"](size) for size in range(1, cell["max"] + 1)],
                    }
                )
        if told:
            yield from self.batch(self.types[self.choose(told)], worker, memory, reasons)

    def choose(self, told: list[dict]) -> str:
        name = self.work.call("next_type", told, form=str)
        if name not in (names := [one["name"] for one in told]):
            raise StudentFault(f"next_type returned {name!r}: return one of {', '.join(names)}.")
        return name

    def submit(self, batch, worker) -> None:
        for subgraph, nodes in batch.nodes.items():
            waited = [self.clock.now() - self.since.pop((subgraph, node)) for node in nodes]
            self.longest_s = max(self.longest_s, *waited)
        super().submit(batch, worker)
        for subgraph in batch.nodes:
            self.note(subgraph)


def chain(*cells: str) -> CellGraph:
    """Nodes of these cells, each of which reads the one before it."""
    return CellGraph(tuple(Node(cell, (Output(i - 1),) if i else (0,)) for i, cell in enumerate(cells)))


def tree(leaves: int) -> CellGraph:
    """A binary tree over so many leaves: cells `leaf` and `inner`."""
    nodes, level = [Node("leaf", (i,)) for i in range(leaves)], [*range(leaves)]
    while len(level) > 1:
        above = []
        for i in range(0, len(level) - 1, 2):
            above.append(len(nodes))
            nodes.append(Node("inner", (Output(level[i]), Output(level[i + 1]))))
        level = above + level[len(level) // 2 * 2 :]
    return CellGraph(tuple(nodes))


class Graphs:
    """What requests unfold into: a graph for each name."""

    def __init__(self, graphs: dict[str, CellGraph]) -> None:
        self.graphs = graphs

    def check(self, request, num_history=0) -> None:
        self.graphs[request.id].check(f"Request {request.id!r}")

    def fit(self, request) -> Request:
        return request

    def begin(self, request) -> Sequence:
        return Unfolded(request, graph=self.graphs[request.id])


def serve_graphs(policy, types: dict, requests: list[tuple[str, float, CellGraph]]):
    """Serve requests in virtual time: of each its name, when it arrives, and its graph.

    Args:
        types: as those of `Scheduler`; `seconds` of one is what a batch of so many nodes takes.

    Returns:
        The engine, whose `now` is the end, and the events of the run.
    """
    clock, trace = VirtualClock(), Trace(technique="cellular")
    policy.clock = clock
    executor = VirtualExecutor(
        clock, lambda plan: types[plan.work[0].cell]["seconds"](len(plan.work)), lambda plan, sequences: Ran({})
    )
    graphs = {name: graph for name, _, graph in requests}
    engine = ServingEngine(
        policy,
        stage("memory", "states")(sum(map(len, graphs.values()))),
        stage("attention", "cells")(),
        *(executor, clock),
        reader=Graphs(graphs),
        trace=trace,
    )
    for name, arrival_s, _ in requests:
        engine.submit(Request(name, (), arrival_s=arrival_s))
    for _ in engine.run():
        pass
    return engine, [*trace.events()]
