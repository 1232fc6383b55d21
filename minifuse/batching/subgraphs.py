"""The request processor: which parts of a request may be scheduled (BatchMaker, 2.4.2 to 2.4.4)."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from minifuse.core.plan import TRANSFORMER, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory


@dataclass(slots=True, eq=False)
class Subgraph:
    """Connected nodes of one type whose dependencies outside of it have been computed, so that they can be scheduled.

    A node is ready when the nodes of the subgraph that it reads have been submitted: tasks of one subgraph go to one
    worker, which runs them in order. `pinned` is that worker, as long as a task with nodes of it runs.
    """

    sequence: Sequence
    cell: str
    priority: int  # cells that come later in the graph are preferred
    ready: deque[int]
    outside: set[int]  # nodes read and not yet computed
    missing: dict[int, int]  # node -> how many that it reads in here are not submitted
    readers: tuple[tuple[int, ...], ...]
    num_running: int = 0  # tasks with nodes of it that have not completed
    pinned: int | None = None

    def work(self, node: int, memory: Memory) -> tuple[Work, ...]:
        """A node as work: one piece, or of a prompt one for each span that memory misses."""
        return (Work(self.sequence.id, node, node + 1, self.cell),)

    def submit(self, node: int) -> None:
        """UpdateNodesDependency (Algorithm 1, line 18): a ready node is in a task; its readers may become ready.

        Nodes are submitted in the order of `ready`.
        """
        self.ready.popleft()
        for reader in self.readers[node]:
            count = self.missing.get(reader)
            if count is not None:
                self.missing[reader] = count - 1
                if count == 1:
                    self.ready.append(reader)


class Iterations(Subgraph):
    """A text as one subgraph: a chain of iterations, each the cell `transformer` (2.9).

    Node 0 is the prompt, node i the i-th token of the answer: computing it produces the next one.
    """

    def work(self, node: int, memory: Memory) -> tuple[Work, ...]:
        """The token that a node reads; of the prompt, what memory misses of it."""
        name, stop = self.sequence.id, len(self.sequence.request.prompt) + node
        if node:
            return (Work(name, stop - 1, stop),)
        return tuple([Work(name, *span) for span in memory.missing(self.sequence)])

    def submit(self, node: int) -> None:
        self.ready.popleft()
        if node + 1 < self.sequence.request.max_new_tokens:
            self.ready.append(node + 1)


class RequestProcessor:
    """Tracks the dependencies of each request, and passes on every subgraph once what it reads outside is computed."""

    def __init__(self, schedule: Callable[[Subgraph], None]) -> None:
        self.schedule = schedule
        self.held: dict[str, list[Subgraph]] = {}  # of each request: subgraphs that wait for others

    def receive(self, sequence: Sequence) -> None:
        """Split a request that has arrived, and pass on the subgraphs that depend on nothing."""
        if sequence.graph is None:
            self.schedule(Iterations(sequence, TRANSFORMER, 0, deque([0]), set(), {}, ()))
            return
        topology = sequence.graph.topology
        held = self.held[sequence.id] = []
        for nodes, missing, outside in topology.parts:
            cell, priority = topology.cells[nodes[0]], topology.changes[nodes[0]]
            ready = deque([node for node in nodes if not missing[node]])
            held.append(Subgraph(sequence, cell, priority, ready, set(outside), dict(missing), topology.readers))
        self.computed(sequence, ())

    def computed(self, sequence: Sequence, nodes: Collection[int]) -> None:
        """Nodes have been computed: pass on the subgraphs that waited for them alone."""
        held = self.held.get(sequence.id)
        if not held:
            return
        for subgraph in held:
            subgraph.outside.difference_update(nodes)
        self.held[sequence.id] = [subgraph for subgraph in held if subgraph.outside]
        for subgraph in held:
            if not subgraph.outside:
                self.schedule(subgraph)

    def release(self, sequence: Sequence) -> None:
        """The request has ended: its waiting subgraphs are dropped."""
        self.held.pop(sequence.id, None)
