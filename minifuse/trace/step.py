"""Makes a step's event: what was decided, and what is new in block tables."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from minifuse.core.places import Pages
from minifuse.core.plan import TRANSFORMER, Place, Shape
from minifuse.core.report import StepReport
from minifuse.core.shapes import Rectangle, Region, StateRows


def step_figures(report: StepReport) -> dict[str, Any]:
    """Return what metrics need of a step, without copies: all except places and layout."""
    plan = report.plan
    return {
        "step": plan.step,
        "worker": plan.worker,
        "work": plan.work,
        "admitted": plan.admitted,
        "evicted": plan.evicted,
        "phase": plan.phase.value,
        "waves": plan.waves,
        "moves": plan.moves,
        **({"reused": plan.reused} if plan.reused else {}),
        "reasons": plan.reasons,
        "computed": plan.num_computed,
        "idle": plan.num_idle,
        "tokens": report.tokens,
        **({"discarded": report.discarded} if report.discarded else {}),
        "finished": {name: reason.value for name, reason in report.finished.items()},
        "kv": report.usage[:4],
        **({"kept": report.usage[4:]} if any(report.usage[4:]) else {}),
    }


def step_decisions(report: StepReport, tables: BlockTables | None = None) -> dict[str, Any]:
    """Return the part of a report that must not depend on the machine's load.

    Args:
        tables: the block tables that earlier steps have written; None: write whole tables.
    """
    plan, tell = report.plan, (tables or BlockTables()).told
    return {
        **step_figures(report),
        "work": [work[:3] if work.cell == TRANSFORMER else work for work in plan.work],
        "places": [tell(work.sequence, place) for work, place in zip(plan.work, plan.places, strict=True)],
        "shape": _named(plan.shape),
        "lanes": plan.layout.lanes,
        **({"passes": plan.layout.passes} if plan.layout.passes else {}),
    }


def _named(shape: Shape | None) -> dict[str, Any] | None:
    """Make a JSON object of a shape: {"kind": "Region", "offset": 0, "size": 3, "width": 8}.

    `kind` is the shape's class. A rectangle's `begin` is left out while it is 0.
    """
    if shape is None:
        return None
    assert isinstance(shape, Rectangle | Region | StateRows)
    fields = {name: value for name, value in shape._asdict().items() if name != "begin" or value}
    return {"kind": type(shape).__name__, **fields}


def num_alike(one: Seq[Any], other: Seq[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    if other[: len(one)] == one:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


class BlockTables:
    """Writes only the new part of each block table, step by step.

    `Pages` become [kept, new, size]: the first `kept` blocks of the sequence's last table, then the `new` ones; then
    the tier, unless it is the device. Other places stay as they are.

    >>> tables = BlockTables()
    >>> for blocks in ((4, 7), (4, 7), (4, 7, 2), (4, 9, 2)):
    ...     print(tables.told("a", Pages(blocks, 16)))
    [0, [4, 7], 16]
    [2, [], 16]
    [2, [2], 16]
    [1, [9, 2], 16]
    """

    def __init__(self) -> None:
        self.last: dict[str, Seq[int]] = {}

    def told(self, name: str, place: Place) -> list[Any]:
        """Return a sequence's place as JSON, and remember its blocks."""
        if not isinstance(place, Pages):
            assert isinstance(place, tuple)
            return list(place)
        blocks = place.blocks
        kept = num_alike(self.last.get(name, ()), blocks)
        self.last[name] = blocks
        tier = [] if place.tier == "device" else [place.tier]
        return [kept, list(blocks[kept:]), place.size, *tier]

    def whole(self, name: str, told: list[Any]) -> list[Any]:
        """Undo `told`: for `Pages`, return the whole block table, its size, perhaps its tier."""
        if len(told) < 3:
            return told
        kept, new, *rest = told
        blocks = self.last[name] = (*self.last.get(name, ())[:kept], *new)
        return [list(blocks), *rest]

    def forget(self, event: Mapping[str, Any]) -> None:
        """Forget the tables of sequences that ended with this event."""
        if event["event"] in ("step", "aborted"):
            for name in event["finished"] if event["event"] == "step" else [event["id"]]:
                self.last.pop(name, None)
