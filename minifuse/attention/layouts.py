"""How the tokens of an iteration are laid out (Baton, 2.1 and 2.2; Flover, V-B; Pensieve, 3.4.4).

The layouts here decide shapes without tensors, so that a simulated run counts the same idle tokens as a real one. Each
names its tensor half, which is imported only in real runs.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from minifuse.attention.packing import pack, seconds_of
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.core.stages import option
from minifuse.stages import Attention

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend

__all__ = [
    "AttentionStage",
    "PackedStage",
    "PaddedStage",
    "PagedStage",
    "PerSequenceStage",
    "SlotsStage",
]


BALANCE = 164.0  # of an RTX 4090 in 16 bits: 165e12 operations and 1.008e12 bytes a second
HIDDEN_SIZE = 4096  # matters for the scores alone, which are a two thousandth of the KV here
# One backend on the kernels, and one of reference numerics on torch, serve all layouts.
KERNELS, REFERENCE = "minifuse.attention.triton:TritonAttention", "minifuse.attention.reference:ReferenceAttention"
KERNEL_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Options:
    """The options of every layout."""

    backend: str = option(
        "auto",
        "what computes attention; auto: Triton's kernels on a GPU, torch elsewhere",
        choices=("auto", "triton", "torch"),
    )


class AttentionStage(Attention):
    """The half of an attention stage that needs no torch.

    The tensor half is a `minifuse.attention.backend.Backend`, named as `module:class`: `tensors` on torch, `kernels` on
    Triton, `reference` for the reference numerics on torch. The last two may be missing.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = Options
    kernels: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """Ragged: the tokens of the work and nothing else."""
        return Layout(placement.waves or (Span(0, len(work)),))

    def check(self, device: str, dtype: str) -> None:
        """Raise `UsageError` or `MachineError` if Triton was chosen and cannot run on this device or in this dtype."""
        if self.options.backend != "triton":
            return
        if not self.kernels:
            raise UsageError(
                f"attention.backend is triton, and the attention {self.name!r} has no kernels: give "
                "attention.backend=torch."
            )
        if dtype not in KERNEL_DTYPES:
            raise UsageError(
                f"attention.backend is triton and --dtype is {dtype}: the kernels compute in "
                f"{', '.join(KERNEL_DTYPES[:-1])} or {KERNEL_DTYPES[-1]}; give one of them, or attention.backend=torch."
            )
        if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise MachineError(
                "attention.backend is triton and the device is a CPU: the kernels need a GPU; give "
                "attention.backend=torch, or set TRITON_INTERPRET=1 to try them, very slowly, in Triton's interpreter."
            )
        if device == "cpu" and dtype == "bfloat16":
            raise UsageError(
                "attention.backend is triton, in Triton's interpreter, which gets bfloat16 wrong: give --dtype float32 "
                "or float16."
            )

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> AttentionBackend:
        """The tensor half. Imports torch.

        Raises:
            UsageError: Triton kernels were chosen and cannot compute this, or there are no `numerics` of this name.
            MachineError: Triton kernels were chosen, and they need a GPU.
        """
        self.check(device, dtype)
        reference, chosen = numerics == "reference", self.options.backend
        if chosen == "auto":
            chosen = "triton" if device == "cuda" and dtype in KERNEL_DTYPES and self.kernels else "torch"
        if reference and not self.reference:
            raise UsageError(
                f"The numerics are reference, and the attention {self.name!r} has none: give --numerics fast."
            )
        if chosen == "triton":
            return _construct(self.kernels, reference)
        return _construct(self.reference if reference else self.tensors)


def _construct(path: str, *arguments: bool) -> AttentionBackend:
    """An instance of the class that `path`, "module:class", names."""
    module, _, name = path.partition(":")
    backend: AttentionBackend = getattr(importlib.import_module(module), name)(*arguments)
    return backend


class PerSequenceStage(AttentionStage):
    """Tokens of all requests concatenated, attention request by request: selective batching (Orca; Baton, 2.2)."""

    name = "per_sequence"
    reads = frozenset({"extents"})
    tensors = "minifuse.attention.per_sequence:PerSequenceAttention"
    kernels = KERNELS
    reference = REFERENCE


class PaddedStage(AttentionStage):
    """A rectangle of tokens with a mask: padding and finished rows are computed, and counted as idle (Baton, 2.1)."""

    name = "padded"
    reads = frozenset({"rectangle"})
    tensors = "minifuse.attention.padded:PaddedAttention"
    kernels = KERNELS
    reference = REFERENCE

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        return Layout((Span(0, len(work)),), placement.shape)


class SlotsStage(AttentionStage):
    """One token in each of the adjacent buffers of a region, as views; prompts request by request (Flover, V-B)."""

    name = "slots"
    reads = frozenset({"slots"})
    tensors = "minifuse.attention.slots:SlotsAttention"
    kernels = KERNELS
    reference = REFERENCE

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        single = all(item.num_tokens == 1 for item in work)
        return Layout(placement.waves or (Span(0, len(work)),), placement.shape if single else None)


class PagedStage(AttentionStage):
    """Tokens of all requests concatenated and attended in one call, over blocks or runs of slots (Pensieve, 3.4.4)."""

    name = "paged"
    reads = frozenset({"pages", "extents"})
    tensors = "minifuse.attention.paged:PagedAttention"
    kernels = KERNELS
    reference = REFERENCE


class PackedStage(AttentionStage):
    """Attention in lanes, of which each attends to short pieces of work one after the other (FluidInfer, 4.2)."""

    name = "packed"
    reads = frozenset({"pages"})
    tensors = "minifuse.attention.packed:PackedAttention"
    kernels = KERNELS
    reference = REFERENCE

    @dataclass(frozen=True)
    class Options(Options):
        lanes: int | None = option(
            None,
            "lanes of a wave, at most; none: as many as the machine runs at once, if known, or as it takes",
            minimum=1,
            offered=True,
        )
        balance: float | None = option(
            None,
            "arithmetic operations that the machine does while it reads a byte, from which times are estimated; none: "
            f"those of the machine, if known, or {BALANCE:g}",
            minimum=0.01,
            maximum=1e6,
            offered=True,
        )

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        waves = placement.waves or (Span(0, len(work)),)
        lanes: list[tuple[int, ...]] = []
        for start, stop in waves:
            packed = pack([self.estimate(item) for item in work[start:stop]], self.options.lanes)
            lanes += [tuple([start + index for index in lane]) for lane in packed]
        return Layout(waves, lanes=tuple(lanes))

    def estimate(self, work: Work) -> float:
        """How long the attention of a piece of work takes, in the time in which the machine reads a byte."""
        balance = BALANCE if self.options.balance is None else self.options.balance
        return seconds_of(work.num_tokens, work.stop, hidden_size=HIDDEN_SIZE, flops=balance, bandwidth=1.0)
