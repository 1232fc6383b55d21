"""The contract of an attention (docs/stages.md): what its methods may return, and those of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from minifuse.contracts.contract import (
    Contract,
    Method,
    check_attribute,
    check_cover,
    check_lanes,
    check_nothing,
    check_signature,
)
from minifuse.errors import LawBroken, MachineError, UsageError
from minifuse.fault import Wrong, blamed, is_own, shown
from minifuse.layout import Layout
from minifuse.plan import Placement, Plan, sampled_work
from minifuse.request import Sequence
from minifuse.work import Work

__all__ = ["AttentionContract"]

BACKEND = {
    "batch": Method(("plan, sequences, cache",)),
    "attend": Method(("heads, rotary, cache, layer, wave",)),
}
BATCH = ("token_ids", "positions", "waves", "sampled", "last_tokens", "real")


class AttentionContract(Contract):
    """Whether what an attention lays out is what was placed."""

    methods: ClassVar[dict[str, Method]] = {
        "layout": Method(("work, placement",)),
        "check": Method(("device, dtype",), (UsageError, MachineError)),
        "backend": Method(("", "device, dtype, numerics", "dtype=, numerics="), (UsageError, MachineError)),
    }

    def made(self, stage: Any, *arguments: Any) -> None:
        check_attribute(stage, "reference", lambda v: isinstance(v, str), "give 'module:class', or '' if there is none")

    def check(self, attention: Any, result: Any, *arguments: Any) -> None:
        check_nothing(result, "check raises UsageError or returns nothing")

    def layout(self, attention: Any, result: Any, work: tuple[Work, ...], placement: Placement) -> Layout:
        if not isinstance(result, Layout):
            raise Wrong(shown(result), "give a Layout (minifuse.layout)")
        check_cover("a Layout whose waves are ", result.waves, len(work))
        bounds = {wave.stop for wave in result.waves} or {len(work)}
        if result.shape is not None and result.shape != placement.shape:
            found = f"a Layout whose shape is {shown(result.shape)}"
            raise Wrong(found, f"give None, or what memory placed: {shown(placement.shape)}", "layout")
        if any(wave.stop not in bounds for wave in placement.waves if wave.stop > wave.start):
            found = f"a Layout whose waves are {shown(result.waves)}"
            raise Wrong(
                found, f"memory has KV in place for the waves {shown(placement.waves)}: divide no less", "layout"
            )
        check_lanes("a Layout whose lanes are ", result.lanes, len(work))
        for move in placement.moves:
            try:
                move.check(len(result.waves) or 1)
            except LawBroken as broken:
                raise Wrong(
                    f"a Layout of {len(result.waves) or 1} waves", str(broken).partition(": ")[2], "layout"
                ) from None
        return result

    def backend(self, attention: Any, result: Any, *arguments: Any) -> Any:
        if is_own(type(result)):
            return result
        if missing := [name for name in ("operators", *BACKEND) if not hasattr(result, name)]:
            allowed = "give an AttentionBackend (minifuse.attention.batch): batch, attend and operators"
            raise Wrong(f"{shown(result)}, which has no {missing[0]!r}", allowed)
        for name, method in BACKEND.items():
            check_signature(type(result), name, method.calls)
        return CheckedBackend(result)


class CheckedBackend:
    """A backend that is not minifuse's own. It goes to the ranks of a parallel run as it is."""

    def __init__(self, backend: Any) -> None:
        self.inner = backend
        self.operators = backend.operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: Any) -> Any:
        """What the backend's `batch` returns, its rows and their numbers checked: no tensor is read."""
        with blamed(type(self.inner), "batch", (LawBroken,)):
            batch = self.inner.batch(plan, sequences, cache)
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
            return batch

    def attend(self, heads: Any, rotary: Any, cache: Any, layer: int, wave: Any) -> Any:
        with blamed(type(self.inner), "attend", (LawBroken,)):
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
