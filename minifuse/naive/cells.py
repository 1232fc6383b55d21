"""The oracle of cell models: one node at a time, a batch of one, nothing kept in slots and nothing batched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minifuse.cell_graph import CellGraph, Output, Zeros
from minifuse.model.cells.model import CellModel
from minifuse.request import Request

__all__ = ["answer", "evaluate"]


@torch.no_grad()
def evaluate(model: CellModel, graph: CellGraph) -> dict[int, tuple[Tensor, ...]]:
    """The outputs of every node of a graph, each of the shape that one row has.

    Args:
        graph: naming cells, as the user's function gives it, or types, as `CellModel.unfold` does.
    """
    found: dict[int, tuple[Tensor, ...]] = {}
    for number in graph.order:
        cell, inputs = graph.nodes[number]
        module = model.types[cell].cell if cell in model.types else model.cells[cell]
        outputs = module(*(_row(model, value, found).unsqueeze(0) for value in inputs))
        found[number] = tuple(part.squeeze(0) for part in ((outputs,) if isinstance(outputs, Tensor) else outputs))
    return found


def _row(model: CellModel, value: Any, found: dict[int, tuple[Tensor, ...]]) -> Tensor:
    """One input of one node."""
    if isinstance(value, Output):
        return found[value.node][value.part]
    if isinstance(value, Zeros):
        return torch.zeros(value.shape, dtype=model.dtype, device=model.device)
    if isinstance(value, float | list | tuple):
        return torch.tensor(value, dtype=model.dtype, device=model.device)  # at once: by way of float32 digits are lost
    row = torch.as_tensor(value, device=model.device)
    return row.to(model.dtype) if row.is_floating_point() else row


def answer(model: CellModel, request: Request) -> list[int]:
    """The tokens that the nodes of a request say, in the order of the graph, the stop token included."""
    graph = model.unfold(request)
    outputs = evaluate(model, graph)
    said: list[int] = []
    for number in graph.order:
        says = model.types[graph.nodes[number].cell].says
        if says is not None and len(said) < request.max_new_tokens:
            said.append(int(outputs[number][says]))
            if said[-1] in request.stop_ids and not request.ignore_eos:
                break
    return said
