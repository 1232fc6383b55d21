"""Baton's Figures 6, 7, 8 (5.2.2): queries completed, tokens generated, KV in use, over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

from minifuse.papers.baton.course import Course
from minifuse.papers.baton.setting import INSERTS, TAKES, Races, Setting
from minifuse.papers.contest import Raced
from minifuse.papers.experiment import Column, Experiment, Panel, Point, Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, spec
from minifuse.papers.verdict import LOWER, MORE, Claim, by_rate

STEPS, EVERY = 200, 20  # moments drawn of a run, up to the end of the slowest; each 20th is in the table

What = Literal["completed", "tokens", "used"]


def longest_wait(course: Course) -> float:
    """Return the longest time without a completed query, as a part of the run."""
    moments = [0.0] + [
        ended
        for ended, (before, after) in zip(course.ended_s, pairwise([0, *course.completed]), strict=True)
        if after > before
    ]
    return max(stop - start for start, stop in pairwise(moments)) / course.seconds


def straightness(course: Course) -> float:
    """Return the largest deviation of the generated tokens from a constant rate.

    Only the first nine tenths of the tokens count. The deviation is a part of these; 0 is a straight line.
    """
    most = 0.9 * course.tokens[-1]
    until = next(i for i, tokens in enumerate(course.tokens) if tokens >= most)
    second, top = course.ended_s[until], course.tokens[until]
    distances = [
        abs(tokens / top - ended / second)
        for ended, tokens in zip(course.ended_s[: until + 1], course.tokens[: until + 1], strict=True)
    ]
    return max(distances)


def deepest_fall(course: Course) -> float:
    """Return the most memory freed between two iterations, as a part of the peak.

    Only the iterations until half of the queries are completed count. 1 means that memory is emptied.
    """
    until = next(i for i, completed in enumerate(course.completed) if 2 * completed >= course.completed[-1])
    return max([0, *(before - after for before, after in pairwise(course.used[: until + 2]))]) / course.peak


class Compared(NamedTuple):
    """A measure of a course, and how the paper compares Baton with static batches."""

    name: str
    of: Callable[[Course], float]
    claim: Claim
    form: str = "{:.0%}"


LESS = replace(LOWER, text="less, without a number")
NEAR = Claim("comparable, taken as within 10%", 0.9, 1.1)
STEPS_6 = (Compared("longest time without a completed query, as a part of the run", longest_wait, LESS),)
PHASES_7 = (Compared("largest deviation from a constant rate, as a part of the tokens", straightness, LESS, "{:.1%}"),)
MEMORY_8 = (
    Compared("peak of memory, in tokens", lambda course: course.peak, NEAR, "{:,.0f}"),
    Compared("mean memory as a part of the peak", lambda course: course.mean_used / course.peak, MORE),
    Compared("deepest fall as a part of the peak", deepest_fall, LESS),
)


def verdicts(races: Races, compared: Sequence[Compared]) -> Iterator[str]:
    """Yield each contender's measures, and the verdicts on them against static batches, by round."""
    for one in compared:
        each = {
            name: {batch: list(map(one.of, served[name].runs)) for batch, served in races.items()} for name in INSERTS
        }
        medians = [
            f"{name} {', '.join(told(found, one.form) for found in by_batch.values())}"
            for name, by_batch in each.items()
        ]
        yield f"{one.name}, by batch ({', '.join(map(str, races))}): {'; '.join(medians)}.".capitalize()
        for name in INSERTS[1:]:
            ratios: dict[float, list[float]] = {
                batch: [
                    ours / theirs if theirs else math.inf
                    for ours, theirs in zip(found, each["static"][batch], strict=True)
                ]
                for batch, found in each[name].items()
            }
            yield by_rate(f"{one.name}, {name} over static".capitalize(), ratios, one.claim, source="paper", by="batch")


def draw(setting: Setting, say: Say, number: str, what: What, head: str, compared: Sequence[Compared]) -> Drawn:
    """Draw one quantity over the run of each contender."""

    def panels(races: Races) -> list[Panel]:
        return [_panel(f"Fig. {number}: batch of {batch}", served, what, head) for batch, served in races.items()]

    say.expect((not setting.virtual) + len(setting.batches))
    setting.raced = races = setting.raced or setting.races(say, INSERTS, panels)
    return Drawn(panels(races), steps=STEPS // EVERY, claims=tuple(verdicts(races, compared)))


def _panel(title: str, served: Mapping[str, Raced[Course]], what: What, head: str) -> Panel:
    """Return the runs of one round, in which all contenders have the same queries."""
    columns = [Column(f"{head}\n{name}", "measured", name, "{:,}", axis="y") for name in served]
    number = served["static"].middle
    runs = {name: one.runs[number] for name, one in served.items()}
    last = max(course.seconds for course in runs.values())
    points = []
    for step in range(1, STEPS + 1):
        second = last if step == STEPS else last * step / STEPS
        values = {name: getattr(run.at(second), what) for name, run in runs.items()}
        points.append(Point({"second": second}, values, {}))
    return Panel(title, (Column("at\ns", "at", "second"), *columns), tuple(points), EVERY)


def _figure(number: str, shows: str, what: What, head: str, compared: Sequence[Compared]) -> Experiment:
    shows = f"{shows} over time, static batches against Baton"
    make = partial(Setting, "second")
    experiment = spec("Baton", number, shows, lambda conditions: conditions.once("courses", make), takes=TAKES)
    return experiment(partial(draw, number=number, what=what, head=head, compared=compared))


FIG_6 = _figure("6", "queries completed", "completed", "completed", STEPS_6)
FIG_7 = _figure("7", "tokens generated", "tokens", "tokens", PHASES_7)
FIG_8 = _figure("8", "KV memory in use", "used", "KV tokens", MEMORY_8)
