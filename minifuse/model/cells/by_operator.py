"""Splits a model of cells into single operators, as DyNet batches them (BatchMaker, 2.2.3).

Each cell is traced with torch.fx, each of its operators becomes a cell of its own, and a node of a graph is replaced by
the nodes of its cell's operators. Equal operators of different cells, such as all sigmoids of one shape, share a type.
A call that only renames parts of a tensor (chunk, indexing, views) belongs to the operator that made the tensor, which
then has several outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain, count
from typing import Any

from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.errors import RequestRefused
from minifuse.core.request import Request
from minifuse.model.cells.definition import definition
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.traced import Program, trace

RESULT = "result"


@dataclass(frozen=True)
class OperatorGraph(CellGraph):
    """A graph of operators, with a node `result` for each result of the cells.

    `origin` maps each `result` to its node in the graph of cells. Any other node without readers is an operator whose
    outputs no cell reads.
    """

    origin: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def reported(self) -> Mapping[int, int]:
        return self.origin

    @property
    def most_held(self) -> int:
        """Count the most states held at once when the graph is computed level by level."""
        return self.topology.most_held_by_levels


class Result(nn.Module):
    """Gathers the outputs of a cell, which come from several operators, in one node."""

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return tuple([part.clone() for part in parts])


def by_operator(model: CellModel) -> CellModel:
    """Split the cells of a model into operators; requests then unfold into an `OperatorGraph`.

    Results, tokens, and the order of tokens are the same as with `model`.

    Raises:
        UsageError: a cell cannot be traced, changes a tensor in place, or has an operator that is not batch first.
    """
    cells: dict[str, nn.Module] = {RESULT: Result()}
    names: dict[Any, str] = {}  # definition -> name of the operator

    def add(base_name: str, cell: nn.Module) -> str:
        """Return the name of an equal operator; add `cell` if there is none."""
        key = definition(cell)
        if key not in names:
            numbered = (f"{base_name}{number}" for number in count(2))
            names[key] = name = next(name for name in chain((base_name,), numbered) if name not in cells)
            cells[name] = cell
        return names[key]

    programs: dict[tuple[int, int], Program] = {}  # by module and number of inputs
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
        starts = list(accumulate((len(program.operators) for program in chosen), initial=0))

        def translated(value: Any) -> Any:
            """Replace the output of a cell by the operator output that computes it."""
            if type(value) is not Output:
                return value
            number, part = chosen[value.node].outputs[value.part]
            return Output(starts[value.node] + number, part)

        nodes: list[Node] = []
        for node, program, start in zip(graph.nodes, chosen, starts, strict=False):
            inputs = [translated(value) for value in node.inputs]
            for cell, reads in program.operators:
                values = [inputs[i] if source is None else Output(start + source, i) for source, i in reads]
                nodes.append(Node(cell, tuple(values)))
        origin = {len(nodes) + i: number for i, number in enumerate(sorted(graph.topology.results))}
        for number in origin.values():
            parts = range(len(chosen[number].outputs))
            nodes.append(Node(RESULT, tuple([translated(Output(number, part)) for part in parts])))
        return OperatorGraph(tuple(nodes), origin)

    dtype = str(model.dtype).removeprefix("torch.")
    return CellModel(f"{model.name} by operator", cells, unfold, model.examples, model.check, dtype, model.device)
