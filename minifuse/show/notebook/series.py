"""Draws charts of what each iteration computes and holds, and of waiting requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from minifuse.core.errors import UsageError
from minifuse.io.parsing import unknown
from minifuse.model.choices import check_choice
from minifuse.show.notebook.colours import HUES, IDLE, INK, SOFT, tint
from minifuse.show.notebook.lanes import MS, By, step_ticks
from minifuse.show.notebook.picture import Picture, check_runs, plain
from minifuse.show.notebook.played import Played
from minifuse.show.timeline import columns_of
from minifuse.trace.history import History, Iteration

WIDTH, HEIGHT = 4.6, 1.3  # inches of a chart
WIDEST = 9.6
FAR = 4  # a capacity above FAR times the most slots in use is only written: no line
HEADROOM = 1.05


class Series(NamedTuple):
    """What a chart shows of an iteration; {} stands for "tokens" or "nodes"."""

    title: str
    unit: str
    colour: str
    value: Callable[[History, Iteration], int]


def _waiting(history: History, one: Iteration) -> int:
    """Count the requests that wait when an iteration begins."""
    waits = [wait for story in history.stories.values() for wait in story.waits]
    return sum(wait.start_s <= one.start_s < wait.end_s for wait in waits)


SERIES = {
    "batch": Series("requests computed", "requests", HUES[0], lambda _, one: len(one.requests)),
    "computed": Series("{} computed", "{}", HUES[2], lambda _, one: int(one.event["computed"])),
    "idle": Series("computed idle", "{}", IDLE, lambda _, one: int(one.event["idle"])),
    "kv": Series("memory in use", "slots", HUES[3], lambda _, one: int(one.event["kv"][0])),
    "host": Series("on the host alone", "slots", HUES[6], lambda _, one: int(one.event["kv"][3])),
    "queue": Series("requests that wait", "requests", HUES[1], _waiting),
}


def values_of(played: Played, name: str) -> list[int]:
    """Return a series' value in each iteration with work, in the order of `played.steps`.

    Raises:
        UsageError: there is no such series.
    """
    if name not in SERIES:
        raise unknown("series", str(name), SERIES)
    history = played.history
    return [SERIES[name].value(history, one) for one in history.iterations if one.work]


def draw_series(
    *played: Played, series: str | Iterable[str] = ("batch", "idle", "kv", "queue"), by: By = "time"
) -> Picture:
    """Draw charts on a common axis: a row per series, a column per run.

        draw_series(play("static", requests), play("orca", requests), series=["batch", "idle"])

    | series | of each iteration |
    |---|---|
    | batch | requests with work in it |
    | computed | tokens, or nodes, computed, idle ones included |
    | idle | tokens, or nodes, computed that no request needs |
    | kv | slots of the device in use; a line marks the capacity, unless all bars are far below it |
    | host | slots of KV that is only on the host |
    | queue | requests that wait when it begins |

    Args:
        by: "time", in milliseconds of the run's clock, or "iterations", as for `draw_lanes`.

    Raises:
        UsageError: an argument is not a run, or a series is unknown.
    """
    check_runs(played, "draw_series")
    check_choice("by", by, ("iterations", "time"))
    names = [series] if isinstance(series, str) else [*series]
    if not names:
        raise UsageError("draw_series was given no series: give one, such as batch.")
    values = {name: [values_of(run, name) for run in played] for name in names}
    size = min(WIDEST, WIDTH * len(played) + 0.8), HEIGHT * len(names) + 0.7
    picture = Picture(*size)
    charts = picture.subplots(len(names), len(played), squeeze=False, sharey="row")
    for name, line in zip(names, charts, strict=True):
        for run, of_run, axes in zip(played, values[name], line, strict=True):
            _draw(axes, run, name, of_run, by)
        units = dict.fromkeys(SERIES[name].unit.format(_computed(run)) for run in played)
        line[0].set_ylabel(" or ".join(units), fontsize=8, color=SOFT)
        _scale(name, line, played, values[name])
    right = max(axes.get_xlim()[1] for axes in charts.flat)
    for axes in charts.flat:
        axes.set_xlim(0, right)
        axes.tick_params(labelbottom=axes in charts[-1])
    for run, axes in zip(played, charts[-1], strict=True):
        axes.set_xlabel("iteration" if by == "iterations" else f"ms of {run.events[0]['clock']} time", fontsize=9)
    for run, axes in zip(played, charts[0], strict=True):
        axes.set_title(f"{run.name}\n", fontsize=11, color=INK, fontweight="bold", parse_math=False)
    return picture


def _computed(run: Played) -> str:
    return "nodes" if run.of_cells else "tokens"


def _draw(axes: Axes, run: Played, name: str, values: list[int], by: By) -> None:
    history, look = run.history, SERIES[name]
    iterations = [(i, one) for i, one in enumerate(history.iterations) if one.work]
    if by == "time":
        spans = [(one.start_s * MS, (one.end_s - one.start_s) * MS) for _, one in iterations]
        axes.set_xlim(0, max(history.last_s * MS, 1e-9))
    else:
        at = {column.iteration: number for number, column in enumerate(columns_of(history))}
        spans = [(float(at[i]), 1.0) for i, _ in iterations]
        axes.set_xlim(0, max(1, len(at)))
    starts, widths = [start for start, _ in spans], [wide for _, wide in spans]
    colours: dict[str, Any] = {"color": tint(look.colour, 0.25), "edgecolor": look.colour}
    axes.bar(starts, values, widths, align="edge", linewidth=0.4, gid=name, **colours)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    plain(axes)
    if by == "iterations":
        step_ticks(axes, run, 12)
    axes.set_title(look.title.format(_computed(run)), fontsize=9, loc="left", color=SOFT)


def _scale(name: str, line: Iterable[Axes], runs: Iterable[Played], values: Iterable[list[int]]) -> None:
    """Give the charts of a series one scale, from 0; mark the capacity of memory.

    A capacity's line is left out if bars would become too low to read; the number is still written.
    """
    charts = [*zip(line, runs, strict=True)]
    highest = max([1, *(value for of_run in values for value in of_run)])
    top = float(highest)
    if name == "kv":
        near = [run.capacity for _, run in charts if run.capacity <= FAR * highest]
        top = float(max([highest, *near]))
        for axes, run in charts:
            if run.capacity in near:
                axes.axhline(run.capacity, color=INK, linewidth=1, linestyle="--", gid="capacity")
            axes.annotate(
                *(f"all there are: {run.capacity:,}", (1, min(run.capacity, top))),
                xycoords=("axes fraction", "data"),
                xytext=(0, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=7,
                color=INK,
            )
    for axes, _ in charts:
        axes.set_ylim(0, top * HEADROOM)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
