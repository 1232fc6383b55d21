"""Verdicts: sentences that set what was measured against what a paper found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minifuse.reproduce.curve import ALIKE, Curve
from minifuse.reproduce.experiment import Point, Value
from minifuse.reproduce.load import MODERATE, Load

SHORT_OF = 0.9  # a gain below this part of the paper's is named


def shown(rate: float) -> str:
    """Requests per second, to three digits or in whole numbers.

    >>> shown(12.345), shown(27136.4)
    ('12.3', '27,136')
    """
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def spread(values: Sequence[float]) -> str:
    """The least and the most of several rounds.

    >>> spread([1.5, 0.25, 2.0])
    '0.25-2'
    """
    return f"{min(values):.3g}-{max(values):.3g}"


def against_paper(points: Sequence[Point], key: str, name: Callable[[Mapping[str, Value]], str]) -> str:
    """The points whose gain (`speedup` or `gain`) falls short of the paper's, and the one farthest above it."""
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
    """One aim: what was found here, what its source gives, and whether it was met; None if it cannot be judged."""
    verdict = "cannot be judged" if met is None else "met" if met else "not met"
    return f"Aim, {what}: {verdict}: {here} ({source}: {published})."


def gain_aim(what: str, ours: Curve, baseline: Curve, published: float) -> str:
    """By how much our peak exceeds the baseline's."""
    gain = ours.peak / baseline.peak - 1
    here = f"{gain:+.1%}, {shown(ours.peak)} against {shown(baseline.peak)} requests/s of {baseline.contender.head}"
    return aim(f"{what} peak throughput", here, f"{published:+.1%}", gain >= published)


def cut_aim(what: str, ours: Curve, baselines: Sequence[Curve], published: tuple[float, float] | float) -> str:
    """By how much our 90th percentile is lower at moderate load, at every rate that is moderate."""
    least, most = (published, None) if isinstance(published, float) else published
    text = f"{-least:.1%}" if most is None else f"{-least:.1%} to {-most:.1%}"
    name = f"{what} 90th percentile at moderate load"
    found = cuts(ours, *baselines)
    if not found:
        return aim(name, f"no rate lies below {MODERATE:.0%} of the baseline's peak", text, None)
    at = ", ".join(f"{-cut:+.1%} at {shown(rate)} requests/s" for rate, cut in found.items())
    return aim(name, at, text, min(found.values()) >= least)


def cuts(ours: Curve, *baselines: Curve) -> dict[float, float]:
    """By rate: the part by which our 90th percentile is below the lowest of the baselines', at moderate load: less than
    half of the highest of their peaks."""
    parts = {}
    for rate, outcome in ours.points.items():
        theirs = [curve.points[rate].p90 for curve in baselines if rate in curve.points]
        if theirs and rate < MODERATE * max(curve.peak for curve in baselines):
            parts[rate] = 1 - outcome.p90 / min(theirs)
    return parts


def sweep_notes(load: Load, published: str, where: str = "") -> tuple[str, str]:
    """How the largest batches were chosen, and the peaks.

    Args:
        published: the largest batch of the thesis, and how it was chosen.
        where: put in front of both, in brackets.
    """
    start = f"({where}) {load.workload}" if where else load.workload
    return f"{start}: {_chosen(load, published)}", f"{start}: {_peaks(load)}"


def _chosen(load: Load, published: str) -> str:
    sizes = next(iter(load.capacities.values()))
    if len(sizes) == 1:
        return f"batches of up to {next(iter(sizes))} for every contender."
    text = ", ".join(f"{curve.contender.head} {curve.max_batch}" for curve in load.curves.values())
    return (
        f"the largest batch of each is the smallest of {', '.join(map(str, sizes))} at which all requests at once are "
        f"served as fast as at the best, or within {ALIKE:.0%}: {text} (thesis: {published})."
    )


def _peaks(load: Load) -> str:
    largest = max(load.curves.values(), key=lambda curve: curve.capacity)
    first, *rest = sorted(load.curves.values(), key=lambda curve: -curve.peak)
    peaks = ", ".join(f"{curve.contender.head} {shown(curve.peak)}" for curve in rest)
    return (
        f"rates are shares of the largest capacity, {shown(load.peak)} requests/s of {largest.contender.head}. What "
        f"can be served here is bounded by {first.contender.head}, at {shown(first.peak)} requests/s; the peaks of the "
        f"other contenders: {peaks}."
    )
