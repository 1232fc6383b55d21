"""A model of cells at the granularity of single operators, as DyNet batches them (BatchMaker, 2.2.3 and 2.7.5).

Each cell is traced with torch.fx, each operator found becomes a cell of its own, and a node of a graph is replaced by
the nodes of its operators. Operators are recognised across cells like all cells are: a sigmoid of the same shape is one
type, wherever it stands. What only renames parts of a tensor (chunk, indexing, views) is done by the operator that made
it, which then has several outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from torch import Tensor, nn

from minifuse.cell_graph import CellGraph, Node, Output
from minifuse.errors import RequestRefused
from minifuse.model.cells.definition import definition
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.traced import Program, trace
from minifuse.request import Request

__all__ = ["OperatorGraph", "by_operator"]

RESULT = "result"


@dataclass(frozen=True)
class OperatorGraph(CellGraph):
    """Nodes that are operators. What a result of the graph of cells gives, a node `result` gives here.

    `origin` says which: node of this graph -> node of the graph of cells. A node that nobody reads and that is not in
    it is an operator whose outputs no cell reads.
    """

    origin: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def reported(self) -> Mapping[int, int]:
        return self.origin

    @property
    def most_held(self) -> int:
        """Only merged graphs are of operators, and those are computed level by level."""
        return self.shape.most_held_by_levels


class Result(nn.Module):
    """What a cell gives, side by side again: the results of a graph of cells are nodes of their own."""

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return tuple([part.clone() for part in parts])


def by_operator(model: CellModel) -> CellModel:
    """The same model, its cells split into operators. Its requests unfold into an `OperatorGraph`.

    Results, and the tokens said and their order, are the same as those of `model`.

    Raises:
        UsageError: a cell cannot be traced, changes a tensor in place, or has an operator that is not batch first.
    """
    cells: dict[str, nn.Module] = {RESULT: Result()}
    names: dict[Any, str] = {}  # of operators, by definition

    def add(wanted: str, cell: nn.Module) -> str:
        """The cell that is the same as this one, which is added if there is none yet."""
        same = definition(cell)
        if same not in names:
            numbered = (f"{wanted}{number}" for number in count(2))
            names[same] = name = next(name for name in chain((wanted,), numbered) if name not in cells)
            cells[name] = cell
        return names[same]

    programs: dict[tuple[int, int], Program] = {}  # by module and how many inputs it is given
    for kind in model.types.values():
        if (id(kind.cell), len(kind.inputs)) not in programs:
            programs[id(kind.cell), len(kind.inputs)] = trace(kind, add)

    def unfold(request: Request) -> OperatorGraph:
        graph = model.unfold(request)
        kinds = [model.types[node.cell] for node in graph.nodes]
        try:
            chosen = [programs[id(kind.cell), len(kind.inputs)] for kind in kinds]
        except KeyError:
            raise RequestRefused(
                f"Request {request.id!r} has a cell with another number of inputs than in all examples, and it was not "
                f"split into operators: give the model {model.name} an example request that has it."
            ) from None
        starts = [0]
        for program in chosen:
            starts.append(starts[-1] + len(program.operators))

        def outside(value: Any) -> Any:
            """An input of a node of cells, as an input of a node of operators."""
            if type(value) is not Output:
                return value
            number, part = chosen[value.node].outputs[value.part]
            return Output(starts[value.node] + number, part)

        nodes: list[Node] = []
        for node, program, start in zip(graph.nodes, chosen, starts, strict=False):
            given = [outside(value) for value in node.inputs]
            for cell, read in program.operators:
                nodes.append(Node(cell, tuple([given[i] if at is None else Output(start + at, i) for at, i in read])))
        origin = {len(nodes) + i: number for i, number in enumerate(sorted(graph.results))}
        for number in origin.values():
            parts = range(len(chosen[number].outputs))
            nodes.append(Node(RESULT, tuple([outside(Output(number, part)) for part in parts])))
        return OperatorGraph(tuple(nodes), origin)

    dtype = str(model.dtype).removeprefix("torch.")
    return CellModel(f"{model.name} by operator", cells, unfold, model.examples, model.check, dtype, model.device)
