"""Attention stages: how an iteration's tokens are laid out as tensors and attended.

The layouts here decide shapes without tensors, so that a simulated run counts the same idle tokens as a real one. Each
names the module of its tensor half, which is imported only to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from minifuse.options import NoOptions
from minifuse.plan import Grid, Placement, Span, Work
from minifuse.stages import register

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend

__all__ = ["PaddedLayout", "PerSequenceLayout"]


@register
class PerSequenceLayout:
    """Tokens of all requests concatenated, attention request by request: Orca's selective batching."""

    kind: ClassVar[str] = "attention"
    name: ClassVar[str] = "per_sequence"
    Options: ClassVar[type] = NoOptions
    reads: ClassVar[str] = "extents"

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | None, tuple[Span, ...]]:
        return None, (Span(0, len(work)),)

    def backend(self) -> AttentionBackend:
        from minifuse.attention.per_sequence import PerSequenceAttention

        return PerSequenceAttention()


@register
class PaddedLayout:
    """A rectangle of tokens with a mask: padding and finished rows are computed like any other, and counted as idle."""

    kind: ClassVar[str] = "attention"
    name: ClassVar[str] = "padded"
    Options: ClassVar[type] = NoOptions
    reads: ClassVar[str] = "grid"

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | None, tuple[Span, ...]]:
        return placement.grid, (Span(0, len(work)),)

    def backend(self) -> AttentionBackend:
        from minifuse.attention.padded import PaddedAttention

        return PaddedAttention()
