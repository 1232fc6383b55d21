"""Lays out the tokens of an iteration (Baton, 2.1 and 2.2; Flover, V-B; Pensieve, 3.4.4).

The layouts here decide shapes without tensors, so that a simulated run counts the same idle tokens as a real one. Each
names its tensor half, which is imported only in real runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.attention.packing import pack, seconds_of
from minifuse.attention.stage import KERNELS, REFERENCE, AttentionStage, Options
from minifuse.core.plan import Layout, Placement, Span, Work
from minifuse.core.stages import option

BALANCE = 164.0  # of an RTX 4090 in 16 bits: 165e12 operations and 1.008e12 bytes a second
HIDDEN_SIZE = 4096  # matters only for the scores, whose bytes are 1/2000 of those of the KV here


class PaddedStage(AttentionStage):
    """Computes a masked rectangle, whose padding and finished rows are idle (Baton, 2.1)."""

    name = "padded"
    reads = frozenset({"rectangle"})
    tensors = "minifuse.attention.padded:PaddedAttention"
    kernels = KERNELS
    reference = REFERENCE

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        return Layout((Span(0, len(work)),), placement.shape)


class SlotsStage(AttentionStage):
    """Attends single tokens together, over a region, and prompts request by request (Flover, V-B)."""

    name = "slots"
    reads = frozenset({"slots"})
    tensors = "minifuse.attention.slots:SlotsAttention"
    kernels = KERNELS
    reference = REFERENCE

    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        single = all(item.num_tokens == 1 for item in work)
        return Layout(placement.waves or (Span(0, len(work)),), placement.shape if single else None)


class PagedStage(AttentionStage):
    """Attends all requests in one call, over blocks or adjacent slots (Pensieve, 3.4.4)."""

    name = "paged"
    reads = frozenset({"pages", "extents"})
    tensors = "minifuse.attention.paged:PagedAttention"
    kernels = KERNELS
    reference = REFERENCE


class PackedStage(AttentionStage):
    """Attends in lanes; a lane computes short pieces one after the other (FluidInfer, 4.2)."""

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
        return Layout(waves, lanes=tuple(lanes), passes=placement.passes)

    def estimate(self, work: Work) -> float:
        """Estimate the attention time of a piece of work; the unit is reading one byte."""
        balance = BALANCE if self.options.balance is None else self.options.balance
        return seconds_of(work.num_tokens, work.stop, hidden_size=HIDDEN_SIZE, flops=balance, bandwidth=1.0)
