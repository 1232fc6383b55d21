"""A model split into operators computes what its cells do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import sentence
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.request import Request
from minifuse.model.cells.by_operator import OperatorGraph, by_operator
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.source import resolve_cells
from minifuse.naive.cells import answer, evaluate


def made(text: str) -> CellModel:
    source = resolve_cells(text)
    assert source is not None
    return source.load("float64")


def same(model: CellModel, split: CellModel, request: Request) -> OperatorGraph:
    """Check every result, and that there are no more."""
    expected = evaluate(model, graph := model.unfold(request))
    found = evaluate(split, expanded := split.unfold(request))
    assert isinstance(expanded, OperatorGraph)
    assert set(expanded.origin.values()) == graph.topology.results
    for new, old in expanded.origin.items():
        assert new in expanded.topology.results
        for ours, theirs in zip(found[new], expected[old], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)
    return expanded


CHAIN = Request("r0", (4, 5, 6), max_new_tokens=7)


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        ("lstm:hidden=8,vocab=30", CHAIN),
        ("seq2seq:hidden=8,vocab=30", CHAIN),
        ("treelstm:hidden=8,vocab=30,children=3", Request("r0", (), structure=(1, (2, 3, (4,)), 5))),
        ("treelstm:hidden=8,vocab=30", Request("r0", (), structure=7)),
    ],
)
def test_results_are_those_of_the_cells(model: str, request_: Request) -> None:
    whole = made(model)
    split = by_operator(whole)
    expanded = same(whole, split, request_)
    assert set(expanded.topology.results) == set(expanded.origin)
    assert answer(split, request_) == answer(whole, request_)
    assert split.num_parameters == whole.num_parameters  # shared, not copied


def test_operators_of_the_lstm() -> None:
    """Its chunk is part of the product, and equal operators are one type wherever they are."""
    split = by_operator(made("lstm:hidden=8,vocab=30"))
    graph = split.unfold(Request("r0", (4,)))
    assert sorted(node.cell for node in graph.nodes) == sorted(
        ["embedding", "cat", "linear", *["sigmoid"] * 3, *["tanh"] * 2, *["mul"] * 3, "add", "result"]
    )
    assert len(split.types["linear"].outputs) == 4


def test_types_are_layers_in_turn_the_cells_of_a_model() -> None:
    split = by_operator(made("seq2seq:hidden=8,vocab=30"))
    assert {name for name, kind in split.types.items() if not list(kind.cell.parameters())} == {
        *("cat", "sigmoid", "tanh", "mul", "add", "argmax", "result")
    }
    assert [name for name, kind in split.types.items() if kind.token_output is not None] == ["argmax"]


class Odd(nn.Module):
    """Views of inputs, bare weights, constants, an input returned as it is, one output twice, and dead code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("shift", torch.randn(3))
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        x.exp()
        left, right = x[:, :2], x.chunk(2, 1)[1]
        y = nn.functional.linear(torch.cat((left, right), 1), self.weight[:3] * 2, bias=self.shift)
        z = torch.stack((y, y + others[0]), 1).flatten(1)
        return z, self.dropout(others[0]).clone(), z, torch.where(y > 0, y, 0.5 * y).sum(-1, keepdim=True)


class Augmented(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y + 1
        y += 1
        return x + 1, y


def odd(cell: nn.Module) -> CellModel:
    def unfold(request: Request) -> CellGraph:
        zeros = Zeros((4,))
        first = Node("odd", ((1.0, 2.0, -3.0, 4.0), (0.5, -1.0, 2.0)))
        second = Node("odd", ((4.0, 1.0, 0.0, 2.0), Output(1, 1)))  # a result, as node 2 is
        return CellGraph((Node("odd", (zeros, Output(1, 1))), first, Node("odd", (zeros, Output(0, 1))), second))

    return CellModel("odd", {"odd": cell}, unfold, Request("example", ()), dtype="float64")


@pytest.mark.parametrize("cell", [Odd(), Augmented()])
def test_unusual_cells(cell: nn.Module) -> None:
    model = odd(cell)
    same(model, by_operator(model), Request("r0", ()))


class Branch(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1, y + 1) if x.sum() > 0 else (x + 2, y + 1)


class InPlace(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, (y + 1).tanh_()


class Turned(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, ((y * 2).t() + 1).t() + 0


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Branch(), "'odd' cannot be split into operators, since torch.fx cannot trace it .TraceError"),
        (InPlace(), "tanh_ changes a tensor in place"),
        (Turned(), "first dimension be the batch"),
    ],
)
def test_cells_that_cannot_be_split(cell: nn.Module, message: str) -> None:
    model = odd(cell)
    with pytest.raises(UsageError, match=message) as refused:
        by_operator(model)
    sentence(refused.value)


def test_what_no_example_had() -> None:
    class Sum(nn.Module):
        def forward(self, *parts: Tensor) -> Tensor:
            return torch.cat([part.unsqueeze(1) for part in parts], 1).sum(1)

    def unfold(request: Request) -> CellGraph:
        return CellGraph((Node("sum", tuple(Zeros((size,)) for size in request.prompt)),))

    examples: Any = [Request("e0", (4, 4)), Request("e1", (3, 3))]
    split = by_operator(CellModel("sums", {"sum": Sum()}, unfold, examples))
    assert len(split.unfold(Request("r0", (3, 3)))) == 5
    with pytest.raises(RequestRefused, match="another number of inputs") as refused:
        split.unfold(Request("r0", (4, 4, 4)))
    sentence(refused.value)
