"""The courses of static batches and of Baton, side by side: what Figures 6, 7 and 8 share (5.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from minifuse.reproduce.baton.course import Course
from minifuse.reproduce.baton.setting import Served, Setting, experiment
from minifuse.reproduce.experiment import Column, Experiment, Finding, Panel, Point, Say, Value

CONTENDERS = ("static", "baton", "baton-pd")  # the paper draws the first two
STEPS = 10  # points of a course, at equal distances up to the end of the slowest

Which = Literal["completed", "tokens", "used"]
Seen = dict[int, dict[str, Served]]  # by batch, then by contender


def figure(
    number: str, shows: str, what: Which, head: str, notes: Callable[[Setting, Seen], Sequence[str]]
) -> Experiment:
    """The experiment that follows one quantity through the run."""

    def draw(setting: Setting, say: Say) -> Finding:
        setting.start(say, CONTENDERS)
        say.expect(len(setting.batches))
        seen: Seen = {}
        panels: list[Panel] = []
        for batch in setting.batches:
            say(f"batch of {batch}")
            seen[batch] = setting.race(batch, CONTENDERS)
            panels.append(_panel(number, batch, seen[batch], what, head))
            say.keep(panels[-1])
        rounds = "" if setting.virtual else " Of each contender, the round with the median completion time."
        explained = f"A course at {STEPS} moments, to the end of the slowest contender.{rounds}"
        return Finding(setting.facts(), tuple(panels), (setting.note(), explained, *notes(setting, seen)))

    return experiment("second", "fig", number, shows, draw)


def compared(seen: Seen, measure: Callable[[Course], float]) -> str:
    """A part of the run, by batch, of static batches and of Baton."""
    return "; ".join(
        f"batch of {batch}: static {measure(served['static'].course):.1%}, baton {measure(served['baton'].course):.1%}"
        for batch, served in seen.items()
    )


def _panel(number: str, batch: int, served: dict[str, Served], what: Which, head: str) -> Panel:
    columns = (
        Column("at\ns", "at", "second"),
        *(Column(f"{head}\n{name}", "measured", name, "{:,}") for name in served),
    )
    last = max(one.course.seconds for one in served.values())
    points = []
    for step in range(1, STEPS + 1):
        second = last if step == STEPS else last * step / STEPS
        values: dict[str, Value] = {name: _value(one.course, second, what) for name, one in served.items()}
        points.append(Point({"second": second}, values, {}))
    return Panel(f"Fig. {number}: batch of {batch}", columns, tuple(points))


def _value(course: Course, second: float, what: Which) -> int:
    completed, tokens, used = course.at(second)
    return {"completed": completed, "tokens": tokens, "used": used}[what]
