"""The oracle of cells: one node at a time, no slots, no batching."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minifuse.core.cell_graph import CellGraph, Output, Zeros
from minifuse.core.request import Request
from minifuse.model.cells.model import CellModel


@torch.no_grad()
def evaluate(model: CellModel, graph: CellGraph) -> dict[int, tuple[Tensor, ...]]:
    """Compute the outputs of every node, each with the shape of one row.

    Args:
        graph: has nodes that name cells, as the user's function makes it, or cell types, as `CellModel.unfold` does.
    """
    results: dict[int, tuple[Tensor, ...]] = {}
    for number in graph.topology.order:
        cell, inputs = graph.nodes[number]
        module = model.types[cell].cell if cell in model.types else model.cells[cell]
        outputs = module(*(_row(model, value, results).unsqueeze(0) for value in inputs))
        results[number] = tuple(part.squeeze(0) for part in ((outputs,) if isinstance(outputs, Tensor) else outputs))
    return results


def _row(model: CellModel, value: Any, results: dict[int, tuple[Tensor, ...]]) -> Tensor:
    """Return one input of a node as a tensor."""
    if isinstance(value, Output):
        return results[value.node][value.part]
    if isinstance(value, Zeros):
        return torch.zeros(value.shape, dtype=model.dtype, device=model.device)
    if isinstance(value, float | list | tuple):
        return torch.tensor(value, dtype=model.dtype, device=model.device)  # directly: via float32 digits are lost
    row = torch.as_tensor(value, device=model.device)
    return row.to(model.dtype) if row.is_floating_point() else row


def answer(model: CellModel, request: Request) -> list[int]:
    """Produce a request's tokens in the order of its graph, stop token included."""
    graph = model.unfold(request)
    outputs = evaluate(model, graph)
    tokens: list[int] = []
    for number in graph.topology.order:
        part = model.types[graph.nodes[number].cell].token_output
        if part is not None and len(tokens) < request.max_new_tokens:
            tokens.append(int(outputs[number][part]))
            if tokens[-1] in request.stop_ids and not request.ignore_eos:
                break
    return tokens
