"""Verdicts: sentences that set what was measured against what a paper found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minifuse.papers.curve import ALIKE, Curve
from minifuse.papers.experiment import Point, Values
from minifuse.papers.load import MODERATE, Load
from minifuse.papers.page import judged, notes, shown

SHORT_OF = 0.9  # a gain below this part of the paper's is named


def spread(values: Sequence[float]) -> str:
    """The least and the most of several rounds.

    >>> spread([1.5, 0.25, 2.0])
    '0.25-2'
    """
    return f"{min(values):.3g}-{max(values):.3g}"


def against_paper(points: Sequence[Point], key: str, name: Callable[[Values], str]) -> str:
    """The points whose gain falls short of the paper's, and the one farthest above.

    The gain is a value called `speedup` or `gain`.
    """
    what = key.replace("speedup", "speed-up")
    short: list[str] = []
    above: list[tuple[float, str]] = []
    for point in points:
        published, gain, limit = point.paper.get(key), point.measured.get(key), point.measured.get("limit")
        if not isinstance(published, float) or not isinstance(gain, float):
            continue
        best = "" if limit is None or gain >= published else f", {limit:.2f}x if no request slowed another down"
        text = f"{name(point.at)} ({gain:.2f}x; paper {published:.1f}x{best})"
        if gain < SHORT_OF * published:
            short.append(text)
        elif gain * SHORT_OF > published:
            above.append((gain / published, text))
    farthest = f" Farthest above the paper's: {max(above)[1]}." if above else ""
    if not short:
        return f"No {what} is below {SHORT_OF:.0%} of one that the paper gives.{farthest}"
    return f"Below {SHORT_OF:.0%} of the paper's {what}: {'; '.join(short)}.{farthest}"


def aim(what: str, here: str, published: str, met: bool | None, source: str = "thesis") -> str:
    """An aim: what was found, what its source gives, and whether it is met.

    An aim that cannot be judged has None.
    """
    return f"Aim, {what}: {judged(met)}: {here} ({source}: {published})."


def gain_aim(what: str, ours: Curve, baseline: Curve, published: float) -> str:
    """By how much our peak exceeds the baseline's."""
    gain = ours.peak / baseline.peak - 1
    here = f"{gain:+.1%}, {shown(ours.peak)} against {shown(baseline.peak)} requests/s of {baseline.contender.head}"
    return aim(f"{what} peak throughput", here, f"{published:+.1%}", gain >= published)


def cut_aim(what: str, ours: Curve, baselines: Sequence[Curve], published: tuple[float, float] | float) -> str:
    """By how much our p90 is lower, at every rate that is a moderate load."""
    least, most = (published, None) if isinstance(published, float) else published
    text = f"{-least:.1%}" if most is None else f"{-least:.1%} to {-most:.1%}"
    name = f"{what} 90th percentile at moderate load"
    found = cuts(ours, *baselines)
    if not found:
        return aim(name, f"no rate lies below {MODERATE:.0%} of the baseline's peak", text, None)
    at = ", ".join(f"{-cut:+.1%} at {shown(rate)} requests/s" for rate, cut in found.items())
    return aim(name, at, text, min(found.values()) >= least)


def cuts(ours: Curve, *baselines: Curve) -> dict[float, float]:
    """By rate: the part by which our p90 is below the lowest of the baselines'.

    Only moderate loads count: less than half of the highest of their peaks.
    """
    parts = {}
    for rate, outcome in ours.points.items():
        theirs = [curve.points[rate]["p90"] for curve in baselines if rate in curve.points]
        if theirs and rate < MODERATE * max(curve.peak for curve in baselines):
            parts[rate] = 1 - outcome["p90"] / min(theirs)
    return parts


def sweep_notes(load: Load, published: str, where: str = "") -> tuple[str, ...]:
    """How the largest batches were chosen, and the peaks.

    Args:
        published: the largest batch of the thesis, and how it was chosen.
        where: put in front of both, in brackets.
    """
    sizes = next(iter(load.capacities.values()))
    largest = max(load.curves.values(), key=lambda curve: curve.capacity)
    first, *rest = sorted(load.curves.values(), key=lambda curve: -curve.peak)
    return notes(
        "sweep",
        start=f"({where}) {load.workload}" if where else load.workload,
        several=len(sizes) > 1,
        sizes=list(sizes),
        alike=ALIKE,
        chosen=[f"{curve.contender.head} {curve.max_batch}" for curve in load.curves.values()],
        published=published,
        load=load,
        largest=largest.contender,
        first=first,
        others=[f"{curve.contender.head} {shown(curve.peak)}" for curve in rest],
    )
