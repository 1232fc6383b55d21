"""Baton's Figure 6 (5.2.2): queries completed, over time."""

from __future__ import annotations

from itertools import pairwise

from minifuse.reproduce.baton.course import Course
from minifuse.reproduce.baton.courses import Seen, compared, figure
from minifuse.reproduce.baton.setting import Setting


def longest_wait(course: Course) -> float:
    """The longest time in which no query is completed, as a part of the run."""
    moments = [0.0] + [
        ended
        for ended, (before, after) in zip(course.ended_s, pairwise([0, *course.completed]), strict=True)
        if after > before
    ]
    return max(stop - start for start, stop in pairwise(moments)) / course.seconds


def notes(setting: Setting, seen: Seen) -> list[str]:
    return [
        "The paper: the steps of static batches, in which the last query of a batch delays the next ones, are hardly "
        "to be seen with Baton. The longest part of a run in which no query is completed: "
        f"{compared(seen, longest_wait)}."
    ]


EXPERIMENT = figure("6", "queries completed over time, static batches against Baton", "completed", "completed", notes)
