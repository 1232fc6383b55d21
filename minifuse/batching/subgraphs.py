"""The request processor: which parts of a request may be scheduled (BatchMaker, 2.4.2 to 2.4.4)."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from minifuse.core.plan import TRANSFORMER, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory


@dataclass(slots=True, eq=False)
class Subgraph:
    """Connected nodes of one type, scheduled once all outside nodes they read are computed.

    A node is ready when the subgraph's nodes that it reads have been submitted. They need not be computed yet, since
    tasks of one subgraph go to one worker, which runs them in order.
    """

    sequence: Sequence
    cell: str
    priority: int  # cells that come later in the graph are preferred
    ready: deque[int]
    outside: set[int]  # outside nodes that it reads and that are not computed yet
    missing: dict[int, int]  # node -> how many of the subgraph's nodes it reads that are not submitted yet
    readers: tuple[tuple[int, ...], ...]
    num_running: int = 0  # tasks in flight with nodes of this subgraph
    pinned: int | None = None  # the worker of these tasks

    def work(self, nodes: list[int], memory: Memory) -> list[Work]:
        """Return the work of these nodes: one piece for each."""
        return [Work(self.sequence.id, node, node + 1, self.cell) for node in nodes]

    def submit(self, node: int) -> None:
        """Submit the first ready node, which may make its readers ready (Algorithm 1, UpdateNodesDependency)."""
        self.ready.popleft()
        for reader in self.readers[node]:
            count = self.missing.get(reader)
            if count is not None:
                self.missing[reader] = count - 1
                if count == 1:
                    self.ready.append(reader)


class Iterations(Subgraph):
    """A text as one subgraph: a chain of iterations, each a cell `transformer` (2.9).

    Node 0 computes the prompt, and node i the i-th token of the answer. Each node produces the next token.
    """

    def work(self, nodes: list[int], memory: Memory) -> list[Work]:
        """Return a node's work: one token of the answer, or the prompt's missing spans."""
        (node,) = nodes  # only one is ready at a time
        name, stop = self.sequence.id, len(self.sequence.request.prompt) + node
        if node:
            return [Work(name, stop - 1, stop)]
        return [Work(name, *span) for span in memory.missing(self.sequence)]

    def submit(self, node: int) -> None:
        self.ready.popleft()
        if node + 1 < self.sequence.request.max_new_tokens:
            self.ready.append(node + 1)


class RequestProcessor:
    """Passes on each subgraph once all outside nodes that it reads are computed."""

    def __init__(self, schedule: Callable[[Subgraph], None]) -> None:
        self.schedule = schedule
        self.held: dict[str, list[Subgraph]] = {}  # request -> its subgraphs that wait for others

    def receive(self, sequence: Sequence) -> None:
        """Split a new request into subgraphs; pass on the subgraphs that wait for no others."""
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
        """Record that nodes are computed; pass on the subgraphs that wait for no others."""
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
        """Drop the waiting subgraphs of a request that has ended."""
        self.held.pop(sequence.id, None)
