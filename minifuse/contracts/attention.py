"""Checks the layouts of an attention, and what its backend returns (docs/stages.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minifuse.contracts.fault import Wrong, blaming, is_own, returned_by, shown
from minifuse.contracts.form import check_cover, check_form, check_lanes, check_passes
from minifuse.contracts.lawful import check_move
from minifuse.core.plan import Layout, Placement, Plan, Span, Work, sampled_work
from minifuse.core.request import Sequence

BATCH = ("token_ids", "positions", "waves", "sampled", "last_tokens", "real")


def check_layout(layout: Any, work: tuple[Work, ...], placement: Placement) -> None:
    """Raise `Wrong` unless a layout covers all work, and fits memory's waves and shape."""
    check_form(layout, Layout)
    check_cover("a Layout whose waves are ", layout.waves, len(work))
    check_lanes("a Layout whose lanes are ", layout.lanes, len(work))
    if layout.passes not in ((), placement.passes):
        allowed = f"give none, or what memory placed: {shown(placement.passes)}"
        raise Wrong(f"a Layout whose passes are {shown(layout.passes)}", allowed, "layout")
    check_passes("a Layout whose passes are ", layout.passes, layout.waves, len(work))
    if layout.shape is not None and layout.shape != placement.shape:
        allowed = f"give None, or what memory placed: {placement.shape}"
        raise Wrong(f"a Layout whose shape is {layout.shape}", allowed, "layout")
    for move in placement.moves:
        check_move(move, len(layout.waves) or 1)
    bounds = {wave.stop for wave in layout.waves or (Span(0, len(work)),)}
    if not bounds.issuperset(wave.stop for wave in placement.waves if wave.stop > wave.start):
        allowed = f"memory has KV in place for the waves {shown(placement.waves)}: divide no less"
        raise Wrong(f"a Layout whose waves are {shown(layout.waves)}", allowed, "layout")


def check_batch(batch: Any, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
    """Raise `Wrong` unless a batch has the rows of its plan. Reads no tensor's values."""
    if not all(hasattr(batch, name) for name in BATCH):
        raise Wrong(shown(batch), "give a Batch (minifuse.attention.batch)")
    sampled, rows = [plan.work[i].sequence for i in sampled_work(plan, sequences)], plan.num_computed
    if sorted(batch.sampled) != sorted(sampled):
        raise Wrong(f"a Batch whose sampled is {shown(batch.sampled)}", f"give {shown(sampled)}: sampled_work")
    check_cover("a Batch whose waves are ", tuple(Span(wave.start, wave.stop) for wave in batch.waves), rows)
    if len(batch.waves) != len(plan.waves):
        raise Wrong(f"a Batch of {len(batch.waves)} waves", f"give the plan's {len(plan.waves)}")
    sizes = {"token_ids": rows, "positions": rows, "last_tokens": len(sampled)}
    if batch.real is not None:
        sizes["real"] = plan.num_tokens
    for name, size in sizes.items():
        _check_shape(f"a Batch whose {name}", getattr(batch, name), (size,))
    for wave in batch.waves:
        _check_shape("a Wave whose slots", wave.slots, (wave.stop - wave.start,))


def checked_backend(attention: Any, *arguments: Any) -> Any:
    """Make an attention's backend; if it is not minifuse's own, wrap it in checks.

    Raises:
        StageFault: the backend lacks a member that it must have.
    """
    with blaming(attention):
        backend = attention.backend(*arguments)
    if is_own(type(backend)):
        return backend
    if missing := [name for name in ("operators", "batch", "attend") if not hasattr(backend, name)]:
        with returned_by(attention, "backend"):
            allowed = "give an AttentionBackend (minifuse.attention.batch): batch, attend and operators"
            raise Wrong(f"{shown(backend)}, which has no {missing[0]!r}", allowed)
    return CheckedBackend(backend)


class CheckedBackend:
    """Checks what a user's backend returns."""

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
        raise Wrong(f"{where} has the shape {shown(found)}", f"give a tensor of the shape {list(shape)}")
