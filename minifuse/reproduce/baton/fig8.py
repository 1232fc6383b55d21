"""Baton's Figure 8 (5.2.2): memory in use by KV, over time."""

from __future__ import annotations

from itertools import pairwise

from minifuse.reproduce.baton.course import Course
from minifuse.reproduce.baton.courses import Seen, figure
from minifuse.reproduce.baton.setting import Setting


def deepest_fall(course: Course) -> float:
    """The most that is given back from one iteration to the next, until half of the queries are completed, as a part of
    the peak: 1 for a memory that is emptied."""
    until = next(i for i, completed in enumerate(course.completed) if 2 * completed >= course.completed[-1])
    return max([0, *(before - after for before, after in pairwise(course.used[: until + 2]))]) / course.peak


def notes(setting: Setting, seen: Seen) -> list[str]:
    parts = []
    for batch, served in seen.items():
        static, baton = served["static"].course, served["baton"].course
        parts.append(
            f"batch of {batch}: peak {baton.peak / static.peak:.2f} times that of static batches, mean "
            f"{baton.mean_used / baton.peak:.0%} of its peak against {static.mean_used / static.peak:.0%}, deepest "
            f"fall {deepest_fall(baton):.0%} of the peak against {deepest_fall(static):.0%}"
        )
    return [
        "KV in use are the columns in use of all rows, padding included, and for baton-pd what waits on the device. "
        "The paper: static batches draw a sawtooth, Baton gives memory back bit by bit, with a comparable peak and a "
        f"higher use. Baton here, {'; '.join(parts)}. A fall is from one iteration to the next, until half of the "
        "queries are completed."
    ]


EXPERIMENT = figure("8", "KV memory in use over time, static batches against Baton", "used", "KV tokens", notes)
