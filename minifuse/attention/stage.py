"""Decides how tokens are laid out, without tensors (Baton, 2.2)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from minifuse.core.errors import MachineError, UsageError
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.core.stages import option
from minifuse.io.parsing import one_of
from minifuse.stages import Attention

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend


# One backend on the kernels, one in C for a CPU, and one of reference numerics on torch serve all layouts.
NATIVE = "minifuse.attention.native:NativeAttention"
KERNELS, REFERENCE = "minifuse.attention.triton:TritonAttention", "minifuse.attention.reference:ReferenceAttention"
KERNEL_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Options:
    """Holds the options of every layout."""

    backend: str = option(
        "auto",
        "what computes attention, also on simulated hardware; native: kernels in C, on a CPU; auto: Triton's kernels "
        "on a GPU, native where a C compiler is, torch elsewhere",
        choices=("auto", "triton", "native", "torch"),
    )


class AttentionStage(Attention):
    """Lays out an iteration without torch; its backend computes attention.

    The tensor half is an `AttentionBackend` (`minifuse.attention.batch`), named as `module:class`: `tensors` on torch,
    `kernels` on Triton, `reference` for the reference numerics on torch. The last two may be missing.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = Options
    kernels: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """Lay out the tokens of the work and nothing else: ragged."""
        return Layout(placement.waves or (Span(0, len(work)),), passes=placement.passes)

    def check(self, device: str, dtype: str) -> None:
        """Raise `UsageError` or `MachineError` if kernels were chosen and cannot run here."""
        if self.options.backend == "native":
            self._check_native(device, dtype)
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
                f"{one_of(KERNEL_DTYPES)}; give one of them, or attention.backend=torch."
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

    def _check_native(self, device: str, dtype: str) -> None:
        from minifuse.kernels.native.library import FLAGS, native

        if not self.kernels or device != "cpu" or dtype not in FLAGS:
            raise UsageError(
                f"attention.backend is native, for {self.name!r} on {device} with --dtype {dtype}: these kernels "
                f"compute minifuse's own layouts, on a CPU, in {one_of(FLAGS)}; give attention.backend=torch."
            )
        native(dtype)

    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> AttentionBackend:
        """Make the tensor half. Imports torch.

        Raises:
            UsageError: Triton kernels were chosen and cannot compute this, or there are no `numerics` of this name.
            MachineError: Triton kernels were chosen, and they need a GPU.
        """
        self.check(device, dtype)
        reference, chosen = numerics == "reference", self.options.backend
        if chosen == "auto":
            chosen = self._fastest(device, dtype)
        if reference and not self.reference:
            raise UsageError(
                f"The numerics are reference, and the attention {self.name!r} has none: give --numerics fast."
            )
        made: AttentionBackend
        if chosen == "triton":
            made = resolve_name(self.kernels)(reference)
        elif chosen == "native" and not reference:
            made = resolve_name(NATIVE)(dtype)
        else:
            made = resolve_name(self.reference if reference else self.tensors)()
        return made

    def _fastest(self, device: str, dtype: str) -> str:
        """Return the fastest backend that this machine has for the layout."""
        if self.kernels and device == "cuda" and dtype in KERNEL_DTYPES:
            return "triton"
        from minifuse.kernels.native.library import has_native

        return "native" if self.kernels and device == "cpu" and has_native(dtype) else "torch"


class PerSequenceStage(AttentionStage):
    """Concatenates tokens, but attends request by request: selective batching (Orca; Baton, 2.2)."""

    name = "per_sequence"
    reads = frozenset({"extents"})
    tensors = "minifuse.attention.backend:TorchPerSequence"
    kernels = KERNELS
    reference = REFERENCE
