"""How an iteration's tokens are laid out: the half of an attention stage that needs no torch (Baton, 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from minifuse.core.option import option
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.core.stages import Attention


@dataclass(frozen=True)
class Options:
    backend: str = option(
        "auto",
        "what computes attention; auto: Triton's kernels on a GPU, torch elsewhere",
        choices=("auto", "triton", "torch"),
    )


class AttentionStage(Attention):
    """A ragged layout. Names its tensor halves as `module:class`: on torch, on Triton, of the reference numerics."""

    Options: ClassVar[type] = Options
    kernels: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """Lay out the tokens of the work and nothing else, in the waves that memory has in place."""
        return Layout(placement.waves or (Span(0, len(work)),))

    def check(self, device: str, dtype: str) -> None:
        import_module("minifuse.attention.backends").check(self, device, dtype)

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """Make the tensor half, on torch or on Triton. Imports torch."""
        return import_module("minifuse.attention.backends").backend(self, device, dtype, numerics)


class PerSequenceStage(AttentionStage):
    """Tokens of all requests concatenated, attention request by request: selective batching (Orca; Baton, 2.2)."""

    name = "per_sequence"
    reads = frozenset({"extents"})
    tensors = "minifuse.attention.per_sequence:PerSequenceAttention"
    kernels = "minifuse.attention.triton:TritonAttention"
    reference = "minifuse.attention.reference:ReferenceAttention"
