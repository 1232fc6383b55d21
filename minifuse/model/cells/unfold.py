"""Checks and unfolds requests for the built-in models of cells. Imports no torch.

LSTM: a chain of `lstm` over the prompt. Seq2Seq: a chain of `encoder` over the prompt, then a chain of `decoder`. The
first decoder reads <go>; each later decoder reads the word that the previous one produced ("feed previous"; BatchMaker,
Fig. 2.12). TreeLSTM: the tree of the request.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import RequestRefused, brief
from minifuse.core.request import Request
from minifuse.model.cells.config import GO, CellConfig
from minifuse.model.cells.trees import unfold_tree

MOST_NEW_TOKENS = 1 << 20

# The outputs h, c and word of each node of a chain: the same in every graph.
_States: list[tuple[Output, Output, Output]] = []


def _states(count: int) -> list[tuple[Output, Output, Output]]:
    while len(_States) < count:
        _States.append((Output(len(_States), 0), Output(len(_States), 1), Output(len(_States), 2)))
    return _States


def chain(cell: str, words: Seq[int], hidden_size: int) -> list[Node]:
    """Make nodes 0, 1, ... of an LSTM over these words, starting from zero states."""
    zeros = Zeros((hidden_size,))
    states = _states(len(words))
    first = Node(cell, (words[0], zeros, zeros))
    return [first, *[Node(cell, (word, h, c)) for word, (h, c, _) in zip(words[1:], states, strict=False)]]


@dataclass(frozen=True, slots=True)
class Unfolding:
    """Unfolds requests to the built-in kinds of model into cell graphs.

    >>> Unfolding(CellConfig("seq2seq", hidden_size=8))(Request("r0", prompt=(7,), max_new_tokens=2)).nodes[1:]
    (Node(cell='decoder', inputs=(1, Output(node=0, part=0), Output(node=0, part=1))), \
Node(cell='decoder', inputs=(Output(node=1, part=2), Output(node=1, part=0), Output(node=1, part=1))))
    """

    config: CellConfig

    def __call__(self, request: Request) -> CellGraph:
        config = self.config
        if config.kind == "treelstm":
            return unfold_tree(f"Request {request.id!r}", request.structure, config.vocab_size, config.max_children)
        if config.kind == "lstm":
            return CellGraph(tuple(chain("lstm", request.prompt, config.hidden_size)))
        nodes = chain("encoder", request.prompt, config.hidden_size)
        start = len(nodes)
        states = _states(start + request.max_new_tokens)
        h, c, _ = states[start - 1]
        nodes.append(Node("decoder", (GO, h, c)))
        nodes += [Node("decoder", (word, h, c)) for h, c, word in states[start : start + request.max_new_tokens - 1]]
        return CellGraph(tuple(nodes))


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Checks that a built-in kind of model can serve a request."""

    config: CellConfig

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` if the model cannot serve this request."""
        name, kind, vocab_size = f"Request {request.id!r}", self.config.kind, self.config.vocab_size
        if kind == "treelstm":
            if request.structure is None:
                raise RequestRefused(f"{name} gives no tree, and {kind} reads one: give nested lists of token ids.")
            unfold_tree(name, request.structure, vocab_size, self.config.max_children)
            return
        if request.structure is not None:
            raise RequestRefused(f"{name} gives a tree, and {kind} reads a prompt: give token ids, or ask treelstm.")
        if not request.prompt:
            raise RequestRefused(f"{name} has an empty prompt: give at least one token.")
        if kind == "seq2seq" and request.max_new_tokens < 1:
            raise RequestRefused(f"{name} asks for {request.max_new_tokens} new tokens: ask for at least 1.")
        if kind == "seq2seq" and request.max_new_tokens > MOST_NEW_TOKENS:  # each is a node, and all are made at once
            raise RequestRefused(
                f"{name} asks for {brief(request.max_new_tokens)} new tokens: ask for at most {MOST_NEW_TOKENS:,}."
            )
        bad = next((token for token in request.prompt if not 0 <= token < vocab_size), None)
        if bad is not None:
            raise RequestRefused(
                f"{name} has the token id {brief(bad)}, and the vocabulary is 0 to {vocab_size - 1}: "
                "give ids of this vocabulary."
            )
