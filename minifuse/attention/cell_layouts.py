"""How a batch of cells is laid out: what was asked for and nothing else, or a row for each request at every step.

Cells attend to nothing, and their runner computes either way: there is no half that works on tensors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minifuse.errors import UsageError
from minifuse.layout import Layout
from minifuse.options import NoOptions
from minifuse.plan import Placement
from minifuse.stages import register
from minifuse.work import Span, Work

__all__ = ["CellsLayout", "PaddedCellsLayout"]


class _CellLayout:
    """What the layouts for models of cells have in common."""

    kind: ClassVar[str] = "attention"
    name: ClassVar[str]
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    Options: ClassVar[type] = NoOptions
    reference: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def check(self, device: str, dtype: str) -> None:
        """Whatever runs the cells runs this."""

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """Raise `UsageError`: only a transformer asks for one."""
        raise UsageError(
            f"The attention {self.name!r} was chosen for a transformer, and lays out cells, which attend to nothing: "
            "choose an attention that serves transformers."
        )


@register
class CellsLayout(_CellLayout):
    """The nodes of a batch and nothing else: no padding is computed, and a wave without nodes is left out."""

    name = "cells"
    reads: ClassVar[frozenset[str]] = frozenset({"states", "rows"})

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        return Layout(_with_work(placement.waves) or (Span(0, len(work)),))


@register
class PaddedCellsLayout(_CellLayout):
    """A row for each request of the batch at every step, whoever has ended: padding is computed and counted as idle."""

    name = "padded_cells"
    reads: ClassVar[frozenset[str]] = frozenset({"rows"})

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        waves = placement.waves if placement.shape else _with_work(placement.waves)
        return Layout(waves or (Span(0, len(work)),), placement.shape)


def _with_work(waves: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(wave for wave in waves if wave.stop > wave.start)
