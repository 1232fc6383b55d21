"""How an iteration's tokens are laid out: the half of an attention stage that needs no torch (Baton, 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from minifuse.core.option import option
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.core.stages import Attention

BACKENDS = "minifuse.attention.backends"  # chooses between torch and Triton


@dataclass(frozen=True)
class Options:
    backend: str = option(
        "auto",
        "what computes attention; auto: Triton's kernels on a GPU, torch elsewhere",
        choices=("auto", "triton", "torch"),
    )


class AttentionStage(Attention):
    """Names its tensor halves as `module:class`: `tensors` on torch, `kernels` on Triton, `reference`."""

    Options: ClassVar[type] = Options
    kernels: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """Ragged: the tokens of the work and nothing else."""
        return Layout(placement.waves or (Span(0, len(work)),))

    def check(self, device: str, dtype: str) -> None:
        import_module(BACKENDS).check(self, device, dtype)

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """The tensor half. Imports torch."""
        return import_module(BACKENDS).backend(self, device, dtype, numerics)


class PerSequenceStage(AttentionStage):
    """Tokens of all requests concatenated, attention request by request: selective batching (Orca; Baton, 2.2)."""

    name = "per_sequence"
    reads = frozenset({"extents"})
    tensors = "minifuse.attention.per_sequence:PerSequenceAttention"
    kernels = "minifuse.attention.triton:TritonAttention"
    reference = "minifuse.attention.reference:ReferenceAttention"
