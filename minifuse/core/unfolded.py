"""A sequence whose request unfolds into a cell graph (BatchMaker, 2.3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minifuse.core.cell_graph import CellGraph
from minifuse.core.request import FinishReason, Sequence

__all__ = ["Unfolded"]


@dataclass(eq=False)
class Unfolded(Sequence):
    """A request to a model of cells, being served; it ends with its answer, or with the last node of its graph."""

    num_nodes_done: int = 0

    @property
    def unfolded(self) -> CellGraph:
        graph: CellGraph = self.graph
        return graph

    def take(self, tokens: tuple[int, ...], num_pieces: int, results: Mapping[int, Any]) -> tuple[int, ...]:
        taken = super().take(tokens, num_pieces, results)
        self.num_nodes_done += num_pieces
        self.results |= results
        return taken

    def why_finished(self) -> FinishReason | None:
        """As of a text; a graph whose nodes are all computed has stopped."""
        reason = super().why_finished()
        is_done = self.graph is not None and self.num_nodes_done == len(self.graph)
        return FinishReason.STOP if reason is None and is_done else reason
