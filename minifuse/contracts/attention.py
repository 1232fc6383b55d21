"""What an attention may lay out, and what its backend may make of it (docs/stages.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minifuse.contracts.moves import check_move
from minifuse.contracts.values import check_cover, check_lanes
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Layout, Placement, Plan, Work, sampled_work
from minifuse.core.request import Sequence
from minifuse.fault import Wrong, blaming, is_own, returned_by, shown

__all__ = ["CheckedBackend", "check_batch", "check_layout", "checked_backend"]

BATCH = ("token_ids", "positions", "waves", "sampled", "last_tokens", "real")


def check_layout(layout: Any, work: tuple[Work, ...], placement: Placement) -> None:
    """Raise `Wrong` unless a layout covers the work in memory's waves and shape."""
    if not isinstance(layout, Layout):
        raise Wrong(shown(layout), "give a Layout (minifuse.core.plan)")
    check_cover("a Layout whose waves are ", layout.waves, len(work))
    check_lanes("a Layout whose lanes are ", layout.lanes, len(work))
    bounds = {wave.stop for wave in layout.waves} or {len(work)}
    if layout.shape is not None and layout.shape != placement.shape:
        found = f"a Layout whose shape is {shown(layout.shape)}"
        raise Wrong(found, f"give None, or what memory placed: {shown(placement.shape)}", "layout")
    if any(wave.stop not in bounds for wave in placement.waves if wave.stop > wave.start):
        found = f"a Layout whose waves are {shown(layout.waves)}"
        raise Wrong(found, f"memory has KV in place for the waves {shown(placement.waves)}: divide no less", "layout")
    num_waves = len(layout.waves) or 1
    for move in placement.moves:
        try:
            check_move(move, num_waves)
        except LawBroken as broken:
            raise Wrong(f"a Layout of {num_waves} waves", str(broken).partition(": ")[2], "layout") from None


def check_batch(batch: Any, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
    """Raise `Wrong` unless a batch has the rows of its plan. Reads no tensor."""
    if not all(hasattr(batch, name) for name in BATCH):
        raise Wrong(shown(batch), "give a Batch (minifuse.attention.batch)")
    sampled = tuple(plan.work[i].sequence for i in sampled_work(plan, sequences))
    rows = (plan.num_computed,)
    _check_shape("a Batch whose token_ids", batch.token_ids, rows)
    _check_shape("a Batch whose positions", batch.positions, rows)
    if sorted(batch.sampled) != sorted(sampled):
        raise Wrong(f"a Batch whose sampled is {shown(batch.sampled)}", f"give {shown(sampled)}: sampled_work")
    _check_shape("a Batch whose last_tokens", batch.last_tokens, (len(sampled),))
    if batch.real is not None:
        _check_shape("a Batch whose real", batch.real, (plan.num_tokens,))
    waves = [(wave.start, wave.stop) for wave in batch.waves]
    reached = 0
    for start, stop in waves:
        reached = stop if start == reached else -1
    if len(waves) != len(plan.waves) or reached != plan.num_computed:
        allowed = f"the plan's {len(plan.waves)} waves are its {plan.num_computed} rows, in order"
        raise Wrong(f"a Batch with waves of the rows {shown(waves)}", allowed)
    for wave in batch.waves:
        _check_shape("a Wave whose slots", wave.slots, (wave.stop - wave.start,))


def checked_backend(attention: Any, *arguments: Any) -> Any:
    """Make an attention's backend; one of a user's own is checked at each call.

    Raises:
        StageFault: it has not what a backend must have.
    """
    with blaming(attention):
        backend = attention.backend(*arguments)
    if is_own(type(backend)):
        return backend
    with returned_by(attention, "backend"):
        if missing := [name for name in ("operators", "batch", "attend") if not hasattr(backend, name)]:
            allowed = "give an AttentionBackend (minifuse.attention.batch): batch, attend and operators"
            raise Wrong(f"{shown(backend)}, which has no {missing[0]!r}", allowed)
    return CheckedBackend(backend)


class CheckedBackend:
    """Checks what a backend of a user's own returns."""

    def __init__(self, backend: Any) -> None:
        self.inner = backend
        self.operators = backend.operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: Any) -> Any:
        with blaming(self.inner), returned_by(self.inner, "batch"):
            batch = self.inner.batch(plan, sequences, cache)
            check_batch(batch, plan, sequences)
            return batch

    def attend(self, heads: Any, rotary: Any, cache: Any, layer: int, wave: Any) -> Any:
        with blaming(self.inner), returned_by(self.inner, "attend"):
            attended = self.inner.attend(heads, rotary, cache, layer, wave)
            num_heads = heads.shape[1] - 2 * cache.num_kv_heads
            _check_shape("a result that", attended, (wave.stop - wave.start, num_heads * heads.shape[2]))
            if attended.dtype != heads.dtype:
                raise Wrong(f"a tensor of {attended.dtype}", f"give one of {heads.dtype}, as its heads are")
            return attended


def _check_shape(where: str, tensor: Any, shape: tuple[int, ...]) -> None:
    found = getattr(tensor, "shape", None)
    if found is None or tuple(found) != shape:
        what = f"is {shown(tensor)}" if found is None else f"has the shape {list(found)}"
        raise Wrong(f"{where} {what}", f"give a tensor of the shape {list(shape)}")
