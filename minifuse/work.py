"""Pieces of work: tokens of a text, or nodes of a cell graph."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TRANSFORMER", "Span", "Work"]

TRANSFORMER = "transformer"  # the one cell of a text: an iteration


class Span(NamedTuple):
    """The half-open range [start, stop)."""

    start: int
    stop: int


class Work(NamedTuple):
    """Compute tokens [start, stop) of a sequence, or node `start` of its cell graph (`cell` names the node's type).

    There is no prefill flag: prefill is a `Work` longer than one token.
    """

    sequence: str
    start: int
    stop: int
    cell: str = TRANSFORMER

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start
