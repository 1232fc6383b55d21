"""Attention stages: how an iteration's tokens are laid out as tensors and attended.

The layouts here decide shapes without tensors, so that a simulated run counts the same idle tokens as a real one. Each
names its tensor half, which is imported only to run.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from minifuse.options import NoOptions
from minifuse.plan import Grid, Placement, Region, Span, Work
from minifuse.stages import register

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend

__all__ = ["Layout", "PaddedLayout", "PagedLayout", "PerSequenceLayout", "SlotsLayout"]


class Layout(ABC):
    """The half of an attention stage that needs no torch. `tensors` is `module:class` of the other half."""

    kind: ClassVar[str] = "attention"
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    reads: ClassVar[frozenset[str]]
    tensors: ClassVar[str]

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @abstractmethod
    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | Region | None, tuple[Span, ...]]: ...

    def backend(self) -> AttentionBackend:
        module, _, name = self.tensors.partition(":")
        backend: AttentionBackend = getattr(importlib.import_module(module), name)()
        return backend


@register
class PerSequenceLayout(Layout):
    """Tokens of all requests concatenated, attention request by request: Orca's selective batching."""

    name = "per_sequence"
    reads = frozenset({"extents"})
    tensors = "minifuse.attention.per_sequence:PerSequenceAttention"

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | Region | None, tuple[Span, ...]]:
        return None, placement.waves or (Span(0, len(work)),)


@register
class PaddedLayout(Layout):
    """A rectangle of tokens with a mask: padding and finished rows are computed like any other, and counted as idle."""

    name = "padded"
    reads = frozenset({"grid"})
    tensors = "minifuse.attention.padded:PaddedAttention"

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | Region | None, tuple[Span, ...]]:
        return placement.grid, (Span(0, len(work)),)


@register
class SlotsLayout(Layout):
    """One token in every adjacent buffer of [offset, offset + size), as views; prompts request by request (Flover)."""

    name = "slots"
    reads = frozenset({"slots"})
    tensors = "minifuse.attention.slots:SlotsAttention"

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | Region | None, tuple[Span, ...]]:
        single = all(item.num_tokens == 1 for item in work)
        return placement.grid if single else None, placement.waves or (Span(0, len(work)),)


@register
class PagedLayout(Layout):
    """Tokens of all requests concatenated and attended in one call, over blocks or runs of slots (Pensieve, 3.4.4)."""

    name = "paged"
    reads = frozenset({"pages", "extents"})
    tensors = "minifuse.attention.paged:PagedAttention"

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Grid | Region | None, tuple[Span, ...]]:
        return None, placement.waves or (Span(0, len(work)),)
