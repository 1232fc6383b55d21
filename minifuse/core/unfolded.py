"""A sequence whose request unfolds into a cell graph (BatchMaker, 2.3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minifuse.core.cell_graph import CellGraph
from minifuse.core.errors import LawBroken
from minifuse.core.request import FinishReason, Sequence


@dataclass(eq=False)
class Unfolded(Sequence):
    """A request to a model of cells, being served; it ends with its last node."""

    num_nodes_done: int = 0

    def take(self, tokens: tuple[int, ...], num_pieces: int, results: Mapping[int, Any] | None) -> tuple[int, ...]:
        taken = super().take(tokens, num_pieces, results) if tokens else tokens
        self.num_nodes_done += num_pieces
        if results:
            self.results |= results
        return taken

    def why_finished(self) -> FinishReason | None:
        """Return why it is finished: its text has ended, or all nodes are computed."""
        reason = super().why_finished() if self.num_new else None
        is_done = self.graph is not None and self.num_nodes_done == len(self.graph)
        return FinishReason.STOP if reason is None and is_done else reason


def unfolded(sequence: Sequence) -> CellGraph:
    """Return the graph of a sequence. Raise `LawBroken` if it is a text."""
    graph: CellGraph | None = sequence.graph
    if graph is None:
        raise LawBroken("layout", f"{sequence.id} is a text where a cell graph is needed")
    return graph
