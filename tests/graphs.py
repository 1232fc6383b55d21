"""Small cell graphs, their work, and a reader that hands them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minifuse.cell_graph import CellGraph, Node, Output
from minifuse.request import Request, Sequence
from minifuse.work import Work


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


def sequence_of(name: str, graph: CellGraph) -> Sequence:
    return Sequence(Request(name, (1,)), graph=graph)


def work_of(*nodes: tuple[str, int]) -> tuple[Work, ...]:
    """The work of nodes, each given as (sequence, node)."""
    return tuple(Work(name, node, node + 1, "a") for name, node in nodes)


@dataclass
class GraphReader:
    """Reads every request as the graph of its id."""

    graphs: Mapping[str, CellGraph]

    def check(self, request: Request) -> None: ...

    def begin(self, request: Request) -> Sequence:
        return Sequence(request, graph=self.graphs[request.id])
