"""Curves of normalized latency against throughput, their panel, and what they say at equal latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minifuse.reproduce.curve import Curve
from minifuse.reproduce.experiment import Column, Panel, Point, Value
from minifuse.reproduce.verdict import aim, shown

__all__ = ["Sweep", "curves_panel", "gain", "gain_at_equal_latency"]

BOUND = 2.0  # times the lowest p90 of the baseline: the latency at which throughputs are compared


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a load sweep: a curve for each contender."""

    title: str
    capacity: float  # requests per second of vllm, all at once
    curves: Mapping[str, Curve]


def curves_panel(sweep: Sweep, more: Sequence[Column] = ()) -> Panel:
    """A row for each rate that was offered, columns for each contender."""
    points = []
    for rate in sorted({rate for curve in sweep.curves.values() for rate in curve.points}):
        measured: dict[str, Value] = {}
        for key, curve in sweep.curves.items():
            if rate in curve.points:
                measured |= curve.points[rate].values(key)
                spread = getattr(curve.points[rate], "rounds_latency", ())
                if len(spread) > 1:
                    measured[f"{key}_spread"] = f"{min(spread):.3g}-{max(spread):.3g}"
        points.append(Point({"rate": rate, "share": rate / sweep.capacity}, measured, {}))
    columns = [Column("offered\nreq/s", "at", "rate")]
    for key, curve in sweep.curves.items():
        head = curve.contender.head
        columns += [
            Column(f"{head}\nreq/s", "measured", f"{key}_throughput"),
            Column(f"{head}\np90 ms", "measured", f"{key}_p90_ms"),
        ]
        if any(f"{key}_spread" in point.measured for point in points):
            columns.append(Column(f"{head}\nspread", "measured", f"{key}_spread", "{}"))
    return Panel(sweep.title, (*columns, *more), tuple(points))


def gain(ours: Curve, baseline: Curve) -> tuple[float, float, float, float] | None:
    """The latency (seconds) at which throughputs are compared, both throughputs there, and their ratio.

    The latency is twice the lowest of the baseline. None: ours is above it at every rate.
    """
    bound = BOUND * baseline.lowest_p90
    here, there = ours.throughput_at(bound), baseline.throughput_at(bound)
    if here is None or there is None:
        return None
    return bound, here, there, here / there


def gain_at_equal_latency(
    title: str, ours: Curve, baseline: Curve, published: float | None, wanted: float | None = None
) -> str:
    """The verdict on our throughput at equal latency.

    Args:
        published: the thesis' gain, as a factor; None: it gives no number.
        wanted: the project's own aim, where it has one.
    """
    what = f"{title}, throughput of {ours.contender.head} over {baseline.contender.head} at equal p90"
    found = gain(ours, baseline)
    aimed = wanted or published or 1.0
    thesis = "better" if published is None else f"{published:.2f}x"
    thesis += "" if wanted is None else f"; aimed at {wanted:g}x"
    if found is None:
        return aim(what, "its p90 is never as low as twice the baseline's lowest", thesis, False)
    bound, here, there, factor = found
    open_end = max(ours.points.values(), key=lambda outcome: outcome.throughput).p90 <= bound
    least = "at least " if open_end else ""
    text = (
        f"{least}{factor:.2f}x, {shown(here)} against {shown(there)} requests/s at {bound * 1e3:.3g} ms a token; peaks "
        f"{shown(ours.peak)} and {shown(baseline.peak)}"
    )
    return aim(what, text, thesis, factor >= aimed)
