"""Verdicts: sentences that set what was measured against what a paper found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minifuse.papers.experiment import Point, Values
from minifuse.papers.page import judged

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
