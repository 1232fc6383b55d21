"""Baton's Figure 7 (5.2.2): tokens generated, over time."""

from __future__ import annotations

from minifuse.reproduce.baton.course import Course
from minifuse.reproduce.baton.courses import Seen, compared, figure
from minifuse.reproduce.baton.setting import Setting


def straightness(course: Course) -> float:
    """The largest distance of the course from a straight line up to where nine tenths of the tokens are there, as a
    part of these tokens: 0 for a constant rate."""
    most = 0.9 * course.tokens[-1]
    until = next(i for i, tokens in enumerate(course.tokens) if tokens >= most)
    second, top = course.ended_s[until], course.tokens[until]
    distances = [
        abs(tokens / top - ended / second)
        for ended, tokens in zip(course.ended_s[: until + 1], course.tokens[: until + 1], strict=True)
    ]
    return max(distances)


def notes(setting: Setting, seen: Seen) -> list[str]:
    return [
        "The paper: static batches generate tokens in phases, each of which slows down, and Baton at a constant rate "
        "until no queries wait. The largest distance from a constant rate, up to nine tenths of the tokens, as a part "
        f"of them: {compared(seen, straightness)}."
    ]


EXPERIMENT = figure("7", "tokens generated over time, static batches against Baton", "tokens", "tokens", notes)
