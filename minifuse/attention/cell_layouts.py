"""Lays out cells: only nodes, or a row for each request (BatchMaker, 2.2.3).

Cells do not attend, and one runner computes both layouts, so there is no tensor half.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minifuse.core.errors import UsageError
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.stages import Attention


class CellsStage(Attention):
    """Computes only the nodes of a batch, without padding; skips waves without nodes."""

    name = "cells"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    reads: ClassVar[frozenset[str]] = frozenset({"states", "rows"})

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        return Layout(tuple(wave for wave in placement.waves if wave.stop > wave.start) or (Span(0, len(work)),))

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """Raise `UsageError`: only a transformer needs a backend."""
        raise UsageError(f"The attention {self.name!r} lays out cells: choose one that serves transformers.")


class PaddedCellsStage(CellsStage):
    """Computes a row for each request at every step; rows of ended requests are idle."""

    name = "padded_cells"
    reads = frozenset({"rows"})

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        return Layout(placement.waves, placement.shape) if placement.shape else super().layout(work, placement)
