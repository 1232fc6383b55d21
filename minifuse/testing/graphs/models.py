"""A small model of cells in float64, and the oracle's answers to its requests.

Each cell reads all its inputs, each input differently, so that a wrong slot, part or order shows in the results.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph
from minifuse.core.request import FinishReason, Request
from minifuse.model.cells.by_operator import by_operator
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.rnn import LSTM, Decoder, Internal, Leaf
from minifuse.naive.cells import answer, evaluate
from minifuse.testing.graphs.recipes import EXAMPLE, HIDDEN, NARROW, VOCAB, Recipe
from minifuse.testing.subject import Expected


class Wide(nn.Module):
    """word, h -> h"""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.linear = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, word: Tensor, h: Tensor) -> Tensor:
        mixed: Tensor = self.linear(torch.cat((self.embedding(word), h), 1))
        return mixed.tanh()


class Join(nn.Module):
    """h, h, z -> h, z"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * HIDDEN + NARROW, HIDDEN + NARROW)

    def forward(self, one: Tensor, two: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        mixed = self.linear(torch.cat((one, two, z), 1)).tanh()
        h, z = mixed.split([HIDDEN, NARROW], 1)
        return h, z


class Weigh(nn.Module):
    """z, h, s -> s, z, word.

    `s` is a number per row. The word is no token of the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(NARROW + HIDDEN, NARROW)

    def forward(self, z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = (self.linear(torch.cat((z, h), 1)) + s.unsqueeze(1)).tanh()
        return z.sum(1) + 0.5 * s, z, (z[:, 0] > z[:, 1]).long()


class Squash(nn.Module):
    """state -> state of the same shape; each shape is a separate type of cell."""

    def forward(self, state: Tensor) -> Tensor:
        return (2.0 * state + 0.1).sin()


def _unfold(request: Request) -> CellGraph:
    recipe: Recipe = request.structure
    return recipe.graph


@cache
def cell_model(by: str = "cell") -> CellModel:
    """Return the small model; its nodes are cells, or operators if `by` is "operator"."""
    if by == "operator":
        return by_operator(cell_model())
    torch.manual_seed(7)
    wide, internal = Wide(), {f"internal{arity}": Internal(HIDDEN, arity) for arity in (1, 2, 3)}
    cells: dict[str, nn.Module] = {
        "lstm": LSTM(HIDDEN, VOCAB),
        "encoder": LSTM(HIDDEN, VOCAB),
        "decoder": Decoder(HIDDEN, VOCAB),
        "leaf": Leaf(HIDDEN, VOCAB),
        **internal,
        "wide": wide,
        "wide again": wide,  # the same type
        "join": Join(),
        "weigh": Weigh(),
        "squash": Squash(),
    }
    for module in cells.values():
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.8)
    return CellModel("small", cells, _unfold, [Request("example", (), structure=EXAMPLE)], dtype="float64")


@lru_cache(maxsize=4096)
def _expected(recipe: Recipe, max_new_tokens: int, stop_ids: tuple[int, ...], ignore_eos: bool) -> Expected:
    model = cell_model()
    request = Request("r", (), max_new_tokens, stop_ids, ignore_eos, structure=recipe)
    graph = model.unfold(request)
    outputs, tokens = evaluate(model, graph), tuple(answer(model, request))
    stopped = bool(tokens) and not ignore_eos and tokens[-1] in stop_ids
    long = len(tokens) == max_new_tokens and not stopped
    return Expected(
        tokens,
        FinishReason.LENGTH if long else FinishReason.STOP,
        {number: outputs[number] for number in graph.topology.results},
        whole=len(tokens) == sum(node.cell == "decoder" for node in graph.nodes),
    )


def expected_of(request: Request) -> Expected:
    """Compute a request's answer and results with the oracle, one node at a time."""
    return _expected(request.structure, request.max_new_tokens, request.stop_ids, request.ignore_eos)
