"""Cell graphs: what a request to a recurrent model unfolds into (BatchMaker, 2.3.1 and 2.4.1).

A cell is a piece of a model that is computed as a whole, such as one step of an LSTM. A request unfolds into a graph of
them: each node names its cell and says where each of the cell's inputs comes from. In this graph of a request of three
words, the cell takes a word, a hidden state and a cell state, and returns the two new states:

    zeros = Zeros((1024,))
    CellGraph((
        Node("lstm", (17, zeros, zeros)),
        Node("lstm", (4, Output(0, 0), Output(0, 1))),
        Node("lstm", (99, Output(1, 0), Output(1, 1))),
    ))

Nothing here imports torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from minifuse.core.errors import RequestRefused


class Output(NamedTuple):
    """The `part`-th output of a node of the same graph."""

    node: int
    part: int = 0


class Zeros(NamedTuple):
    """The first state of a recurrence: zeros of this shape, without the batch dimension."""

    shape: tuple[int, ...]


class Node(NamedTuple):
    """One cell to be computed.

    An input is an `Output` of another node, `Zeros`, or a constant: a whole number (a token id), a float, a list or
    tuple of floats, or a tensor, without the batch dimension.
    """

    cell: str
    inputs: tuple[Any, ...]

    @property
    def sources(self) -> tuple[int, ...]:
        """Return the nodes that this node reads, each once, in the order of its inputs."""
        return tuple(dict.fromkeys(value.node for value in self.inputs if isinstance(value, Output)))


class Wire(NamedTuple):
    """An edge: input `position` of the reading node is output `part` of `node`."""

    position: int
    node: int
    part: int = 0


class Topology:
    """The edges of a graph, without its constants. Graphs with equal edges share a topology."""

    def __init__(self, cells: tuple[str, ...], inputs: tuple[tuple[Output | None, ...], ...]) -> None:
        self.cells = cells  # the cell of each node
        self._inputs = inputs
        # For each node: the nodes that its inputs come from, and the same nodes, each once.
        self.reads = tuple([tuple([x.node for x in of_one if x is not None]) for of_one in inputs])
        self.sources = tuple([tuple(dict.fromkeys(read)) for read in self.reads])

    @cached_property
    def wires(self) -> tuple[tuple[Wire, ...], ...]:
        """Return for each node its inputs that are outputs of other nodes.

        >>> Topology(("a", "b"), ((None,), (None, Output(0)))).wires
        ((), (Wire(position=1, node=0, part=0),))
        """
        numbered = (enumerate(of_one) for of_one in self._inputs)
        return tuple(tuple(Wire(i, *x) for i, x in of_one if x is not None) for of_one in numbered)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Return for each node the nodes that read it.

        >>> Topology(("a", "a", "b"), ((), (), (Output(0), Output(1)))).readers
        ((2,), (2,), ())
        """
        found: list[list[int]] = [[] for _ in self.cells]
        for number, sources in enumerate(self.sources):
            for source in sources:
                found[source].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def results(self) -> frozenset[int]:
        """Return the nodes that no other node reads."""
        return frozenset(number for number, readers in enumerate(self.readers) if not readers)

    @cached_property
    def reported(self) -> dict[int, int]:
        """Number the results: each is reported under its own node number."""
        return {number: number for number in self.results}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Order the nodes topologically (Kahn, 1962); cycles and their readers are left out."""
        missing = [len(sources) for sources in self.sources]
        ready = deque(number for number, count in enumerate(missing) if not count)
        found = []
        while ready:
            found.append(number := ready.popleft())
            for reader in self.readers[number]:
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        return tuple(found)

    @cached_property
    def most_held(self) -> int:
        """Bound the number of states held at one time, whatever the order of computation.

        A state is held from the computation of its node until all its readers are computed. In a chain or a tree every
        node has at most one reader. The held nodes then lie on different paths from a leaf to the root, so they are at
        most as many as the leaves. The same bound holds for nodes being computed. In other graphs all may be held.

        >>> Topology(("a", "a", "a"), ((None,), (Output(0),), (Output(1),))).most_held
        2
        """
        if any(len(readers) > 1 for readers in self.readers):
            return len(self.cells)
        return min(len(self.cells), 2 * sum(not sources for sources in self.sources))

    @cached_property
    def levels(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Group the nodes by depth and cell.

        A node's depth is the number of nodes on the longest path to it.

        >>> Topology(("leaf", "leaf", "internal"), ((), (), (Output(0), Output(1)))).levels
        {(0, 'leaf'): (0, 1), (1, 'internal'): (2,)}
        """
        depth = [0] * len(self.cells)
        found: dict[tuple[int, str], list[int]] = {}
        for node in self.order:
            if sources := self.sources[node]:
                depth[node] = max([depth[source] for source in sources]) + 1
            found.setdefault((depth[node], self.cells[node]), []).append(node)
        return {level: tuple(found[level]) for level in sorted(found)}

    @cached_property
    def most_held_by_levels(self) -> int:
        """Return the maximum number of states held at one time when computing level by level."""
        unread = [len(readers) for readers in self.readers]
        held = most = 0
        for nodes in self.levels.values():
            held += len(nodes)
            most = max(most, held)
            for node in nodes:
                for source in self.sources[node]:
                    unread[source] -= 1
                    held -= not unread[source]
        return most

    @cached_property
    def parts(self) -> tuple[tuple[tuple[int, ...], dict[int, int], frozenset[int]], ...]:
        """Return each subgraph's nodes, how many inside sources each node has, and the outside sources."""
        found = []
        for nodes in self.subgraphs:
            inside = set(nodes)
            missing = {node: sum(source in inside for source in self.sources[node]) for node in nodes}
            read = frozenset(source for node in nodes for source in self.sources[node])
            found.append((nodes, missing, read - inside))
        return tuple(found)

    @cached_property
    def subgraphs(self) -> tuple[tuple[int, ...], ...]:
        """Split the graph into subgraphs: connected nodes of one cell (BatchMaker, 2.4.3).

        In a -> b -> a', where a' reads a as well, a and a' are connected, but a' must wait for b. So connected nodes
        are in one subgraph only if the paths to them change the cell equally often (`changes`). The nodes that a
        subgraph reads from outside have fewer changes, so no two subgraphs wait for each other.

        Returns:
            The nodes of each subgraph in topological order. Subgraphs are ordered by their first node.

        >>> Topology(("leaf", "leaf", "internal"), ((), (), (Output(0), Output(1)))).subgraphs
        ((0,), (1,), (2,))
        """
        home: dict[int, int] = {}  # a union-find forest: node -> another node of the same subgraph, or itself

        def root(node: int) -> int:
            while home[node] != node:
                home[node] = node = home[home[node]]
            return node

        for node in self.order:
            home[node] = node
            for source in self.sources[node]:
                if self.cells[source] == self.cells[node] and self.changes[source] == self.changes[node]:
                    home[root(node)] = root(source)
        found: dict[int, list[int]] = {}
        for node in self.order:
            found.setdefault(root(node), []).append(node)
        return tuple(map(tuple, found.values()))

    @cached_property
    def changes(self) -> dict[int, int]:
        """Return, for each node, the maximum number of cell changes on a path to it."""
        found: dict[int, int] = {}
        for node in self.order:
            changes = [found[source] + (self.cells[source] != self.cells[node]) for source in self.sources[node]]
            found[node] = max(changes, default=0)
        return found


_topology = lru_cache(1024)(Topology)


@dataclass(frozen=True)
class CellGraph:
    """The nodes of a request, in any order. Nodes that no other reads are results."""

    nodes: tuple[Node, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def topology(self) -> Topology:
        """Return the edges of this graph."""
        return _topology(
            tuple([node.cell for node in self.nodes]),
            tuple([tuple([x if type(x) is Output else None for x in node.inputs]) for node in self.nodes]),
        )

    @property
    def reported(self) -> Mapping[int, int]:
        """Map each node that is a result to the number under which it is reported."""
        return self.topology.reported

    @property
    def most_held(self) -> int:
        return self.topology.most_held

    def check(self, name: str) -> None:
        """Raise `RequestRefused` unless this graph can be computed. `name` begins the message."""
        if not self.nodes:
            raise RequestRefused(f"{name} unfolds into an empty graph: give it at least one node.")
        for number, node in enumerate(self.nodes):
            wrong = next((source for source in node.sources if not 0 <= source < len(self.nodes)), None)
            if wrong is not None:
                raise RequestRefused(
                    f"{name} has node {number} (cell {node.cell!r}), which reads node {wrong}, and the graph has nodes "
                    f"0 to {len(self.nodes) - 1}: let it read one of them."
                )
        if len(self.topology.order) < len(self.nodes):
            try:
                TopologicalSorter(dict(enumerate(self.topology.sources))).prepare()
            except CycleError as error:
                cycle = " -> ".join(map(str, error.args[1]))
                what = f"{name} unfolds into a graph with a cycle ({cycle})"
                raise RequestRefused(f"{what}: a node cannot wait for itself.") from None
