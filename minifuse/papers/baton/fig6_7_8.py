"""Baton's Figures 6, 7, 8 (5.2.2): queries completed, tokens generated, KV in use, over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Literal

from minifuse.papers.baton.course import Course
from minifuse.papers.baton.setting import INSERTS, TAKES, Races, Setting
from minifuse.papers.contest import Raced
from minifuse.papers.experiment import Column, Experiment, Panel, Point, Say
from minifuse.papers.page import Drawn, spec
from minifuse.papers.verdict import Claim, verdict

STEPS = 10  # points drawn of each run, at equal distances up to the end of the slowest run

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


def shares_of(measure: Callable[[Course], float], courses: Mapping[str, Course]) -> str:
    """Format a measure of each contender's run."""
    return ", ".join(f"{name} {measure(course):.1%}" for name, course in courses.items())


def memory_of(courses: Mapping[str, Course]) -> str:
    """Format each contender's mean and deepest fall of memory, as parts of its peak."""
    return ", ".join(
        f"{name} {one.mean_used / one.peak:.0%} and {deepest_fall(one):.0%}" for name, one in courses.items()
    )


def comparable(races: Races) -> Iterator[str]:
    """Yield the verdicts on the peak of memory, which the paper calls comparable to that of static batches."""
    for batch, served in races.items():
        for name in INSERTS[1:]:
            pairs = zip(served[name].runs, served["static"].runs, strict=True)
            ratios = [ours.peak / static.peak for ours, static in pairs]
            what = f"Peak of memory, {name} over static, batch of {batch}"
            yield verdict(what, ratios, Claim("comparable, taken as within 10%", 0.9, 1.1), source="paper")


def draw(
    setting: Setting, say: Say, number: str, what: What, head: str, compare: Callable[[Mapping[str, Course]], str]
) -> Drawn:
    """Draw one quantity over the run of each contender."""

    def panels(races: Races) -> list[Panel]:
        return [_panel(f"Fig. {number}: batch of {batch}", served, what, head) for batch, served in races.items()]

    say.expect((not setting.virtual) + len(setting.batches))
    setting.raced = races = setting.raced or setting.races(say, INSERTS, panels)
    compared = (
        f"batch of {batch}: {compare({name: one.run for name, one in served.items()})}"
        for batch, served in races.items()
    )
    claims = tuple(comparable(races)) if what == "used" else ()
    return Drawn(panels(races), steps=STEPS, compared="; ".join(compared), claims=claims)


def _panel(title: str, served: Mapping[str, Raced[Course]], what: What, head: str) -> Panel:
    columns = [Column(f"{head}\n{name}", "measured", name, "{:,}", axis="y") for name in served]
    last = max(one.run.seconds for one in served.values())
    points = []
    for step in range(1, STEPS + 1):
        second = last if step == STEPS else last * step / STEPS
        values = {name: getattr(one.run.at(second), what) for name, one in served.items()}
        points.append(Point({"second": second}, values, {}))
    return Panel(title, (Column("at\ns", "at", "second"), *columns), tuple(points))


def _figure(
    number: str, shows: str, what: What, head: str, compare: Callable[[Mapping[str, Course]], str]
) -> Experiment:
    shows = f"{shows} over time, static batches against Baton"
    make = partial(Setting, "second")
    experiment = spec("Baton", number, shows, lambda conditions: conditions.once("courses", make), takes=TAKES)
    return experiment(partial(draw, number=number, what=what, head=head, compare=compare))


FIG_6 = _figure("6", "queries completed", "completed", "completed", partial(shares_of, longest_wait))
FIG_7 = _figure("7", "tokens generated", "tokens", "tokens", partial(shares_of, straightness))
FIG_8 = _figure("8", "KV memory in use", "used", "KV tokens", memory_of)
