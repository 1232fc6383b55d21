"""The sentences below BatchMaker's figures: how it was measured, and whether what the thesis found was found here."""

from __future__ import annotations

from collections.abc import Sequence

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce.batchmaker_load import ALIKE, MODERATE, Curve, cuts
from minifuse.reproduce.batchmaker_panels import Load
from minifuse.reproduce.batchmaker_setting import Setting

__all__ = ["aim", "bounds", "chosen", "cut_aim", "gain_aim", "load_notes", "shown"]


def shown(rate: float) -> str:
    """Requests per second, to three digits or in whole numbers.

    >>> shown(12.345), shown(27136.4)
    ('12.3', '27,136')
    """
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def aim(what: str, here: str, told: str, met: bool | None) -> str:
    """One aim, the number found, the thesis' number, and whether it was met; None if there is nothing to tell by."""
    verdict = "cannot be told" if met is None else "met" if met else "not met"
    return f"Aim, {what}: {verdict}: {here} (thesis: {told})."


def gain_aim(what: str, ours: Curve, baseline: Curve, told: float) -> str:
    """By how much our peak exceeds the baseline's."""
    gain = ours.peak / baseline.peak - 1
    here = f"{gain:+.1%}, {shown(ours.peak)} against {shown(baseline.peak)} requests/s of {baseline.contender.head}"
    return aim(f"{what} peak throughput", here, f"{told:+.1%}", gain >= told)


def cut_aim(what: str, ours: Curve, baselines: Sequence[Curve], told: tuple[float, float] | float) -> str:
    """By how much our 90th percentile is lower at moderate load, at every rate that is moderate."""
    least, most = (told, None) if isinstance(told, float) else told
    text = f"{-least:.1%}" if most is None else f"{-least:.1%} to {-most:.1%}"
    name = f"{what} 90th percentile at moderate load"
    found = cuts(ours, *baselines)
    if not found:
        return aim(name, f"no rate lies below {MODERATE:.0%} of the baseline's peak", text, None)
    at = ", ".join(f"{-cut:+.1%} at {shown(rate)} requests/s" for rate, cut in found.items())
    return aim(name, at, text, min(found.values()) >= least)


def bounds(load: Load) -> str:
    """What the rates are shares of, and everybody's peak."""
    largest = max(load.curves.values(), key=lambda curve: curve.capacity)
    first, *others = sorted(load.curves.values(), key=lambda curve: -curve.peak)
    rest = ", ".join(f"{curve.contender.head} {shown(curve.peak)}" for curve in others)
    return (
        f"{load.workload}: rates are shares of the largest capacity, {shown(load.peak)} requests/s of "
        f"{largest.contender.head}. What can be served here is bounded by {first.contender.head}, at "
        f"{shown(first.peak)} requests/s; the others' peaks: {rest}."
    )


def chosen(load: Load, told: str = f"{paper.MAX_BATCH}, by Fig. 2.3") -> str:
    """How the largest batches came about, and what the thesis' are."""
    sizes = next(iter(load.capacities.values()))
    if len(sizes) == 1:
        return f"{load.workload}: batches of up to {next(iter(sizes))} for everybody."
    text = ", ".join(f"{curve.contender.head} {curve.max_batch}" for curve in load.curves.values())
    return (
        f"{load.workload}: the largest batch of each is the smallest of {', '.join(map(str, sizes))} at which all "
        f"requests at once are served as fast as at the best, or within {ALIKE:.0%}: {text} (thesis: {told})."
    )


def load_notes(setting: Setting) -> tuple[str, ...]:
    """What holds for every figure of latency against throughput."""
    return (
        setting.how(),
        "Requests arrive as a Poisson process, the same for every contender, at growing rates until a contender's "
        "throughput grows no more. Throughput counts from the first arrival to the end of the last request. A peak is "
        "the highest throughput at any rate, or with all requests at once. At a run's end batches are small, which "
        "costs most where requests are few and spread over many buckets: the thesis has 100K. Words are made up, and "
        "lengths follow the laws of the thesis' data (see minifuse.workload.cells).",
    )
