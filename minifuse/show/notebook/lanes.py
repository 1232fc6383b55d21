"""Draws lanes: a row for each request, with what it does from left to right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minifuse.model.choices import check_choice
from minifuse.show.notebook.colours import IDLE, INK, STATES, ink_on, owner_colour, tint
from minifuse.show.notebook.picture import Picture, check_runs, explain, plain
from minifuse.show.notebook.played import Played
from minifuse.show.timeline import (
    BROKEN_OFF,
    ENDED,
    HELD,
    MEANINGS,
    PREPROCESSING,
    PROMPT,
    READY,
    RUNNING,
    SUSPENDED,
    WAIT_SIGNS,
    WAITING,
    columns_of,
    draw_timeline,
    letters_of,
    sign_of,
)
from minifuse.show.timeline import IDLE as IDLE_SIGN
from minifuse.trace.history import Story
from minifuse.trace.idle_rows import idle_rows

By = Literal["iterations", "time"]
ROW, HEAD, NARROWEST, WIDEST = 0.28, 0.75, 4.8, 9.6  # inches
HIGH = 0.78  # height of a bar, as a part of its row
MS = 1e3
MOST_LETTERS, MOST_RULES = 90, 120  # most columns that get letters, and that get lines between them
LOOKS = {  # of each sign, as on the replay page (lanes.js): fill, pattern, and the pattern's colour
    WAITING: ("waiting-soft", "...", "waiting"),
    PREPROCESSING: ("apart", "////", "panel"),
    READY: ("ready-soft", "---", "ready"),
    PROMPT: ("prompt", "|||", "panel"),
    RUNNING: ("running", "", "panel"),
    HELD: ("held", "", "panel"),
    SUSPENDED: ("suspended-soft", "xxx", "suspended"),
    IDLE_SIGN: ("idle-soft", "\\\\\\\\", "idle"),
}
NUM_TASKS = 7  # colours of types of cells


class Span(NamedTuple):
    """What a request does for a while; start and stop are columns, or milliseconds."""

    sign: str
    start: float
    stop: float


def draw_lanes(*played: Played, by: By = "iterations") -> Picture:
    """Draw who computes and who waits: a row for each request, by arrival.

        draw_lanes(play("static", requests), play("orca", requests), by="time")

    Runs are drawn one above the other. Colours and patterns say what a request does, as on the replay page. Names have
    the requests' own colours, as in `draw_memory`. A black line marks the end of a request.

    Args:
        by: "iterations" draws a column for each iteration, with its number, and for each pause; "time" draws
            milliseconds of the run's clock, on one axis for all runs.

    Raises:
        UsageError: an argument is not a run, or `by` is neither.
    """
    check_runs(played, "draw_lanes")
    check_choice("by", by, ("iterations", "time"))
    heights = [max(1, len(run.history.stories)) for run in played]
    longest = max([len(columns_of(run.history)) for run in played])
    width = WIDEST if by == "time" else min(WIDEST, max(NARROWEST, 1.5 + 0.16 * longest))
    picture = Picture(width, sum(heights) * ROW + HEAD * (len(played) + 0.5))
    every = picture.subplots(len(played), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    seen = {sign for run, axes in zip(played, every, strict=True) for sign in _draw(axes, run, by)}
    right = max(axes.get_xlim()[1] for axes in every)  # one axis for all
    for axes in every:
        axes.set_xlim(0, right)
    every[-1].set_xlabel("iteration" if by == "iterations" else f"ms of {_clock(played)} time", fontsize=9)
    legend = {MEANINGS[sign]: _look(sign) for sign in LOOKS if sign in seen}
    letters = {sign: cell for run in played for cell, sign in letters_of(run.history).items()}
    legend |= {f"{sign}: computes a node of {cell}": _task(i) for i, (sign, cell) in enumerate(letters.items())}
    explain(picture, legend)
    return picture


def _draw(axes: Axes, run: Played, by: By) -> set[str]:
    """Draw one run; return the signs that occur."""
    stories = run.history.by_arrival
    lanes = _by_iteration(run) if by == "iterations" else _by_time(run)
    cells = [*letters_of(run.history).values()]
    for row, story in enumerate(stories):
        for sign, start, stop in lanes[story.id]:
            if sign in (ENDED, BROKEN_OFF):
                across = [row - HIGH / 2, row + HIGH / 2]
                colour = INK if sign == ENDED else IDLE
                axes.plot(
                    [stop, stop], across, color=colour, linewidth=2.5, zorder=3, clip_on=False, gid=f"end {story.id}"
                )
                continue
            look = _task(cells.index(sign)) if sign in cells else _look(sign)
            box = Rectangle((start, row - HIGH / 2), stop - start, HIGH, gid=f"{sign} {story.id}", **look)
            axes.add_patch(box)
            if sign in cells and by == "iterations" and len(columns_of(run.history)) <= MOST_LETTERS:
                for column in range(round(start), round(stop)):
                    axes.text(
                        column + 0.5, row, sign, ha="center", va="center", fontsize=7, color=ink_on(look["facecolor"])
                    )
    axes.set_yticks(range(len(stories)), [story.id for story in stories])
    axes.set_ylim(len(stories) - 0.4, -0.6)
    ends = [span.stop for spans in lanes.values() for span in spans]
    axes.set_xlim(0, max([*ends, 1e-9]))
    plain(axes)
    if by == "iterations":
        step_ticks(axes, run)
        if len(columns_of(run.history)) <= MOST_RULES:
            for column in range(1, len(columns_of(run.history))):
                axes.axvline(column, color="white", linewidth=0.7)
    axes.set_title(_title(run), fontsize=10, loc="left", color=INK, parse_math=False)
    for label, story in zip(axes.get_yticklabels(), stories, strict=True):
        label.set_color(tint(owner_colour(run, story.id), 0.35, towards=0))
        label.set_fontweight("bold")
    return {span.sign for spans in lanes.values() for span in spans}


def _title(run: Played) -> str:
    refused = f", {len(run.refused)} refused" if run.refused else ""
    return f"{run.name}: {len(run.steps)} iterations in {run.history.last_s * MS:.4g} ms{refused}"


def _clock(played: tuple[Played, ...]) -> str:
    clocks = dict.fromkeys(str(run.events[0]["clock"]) for run in played)
    return " and ".join(clocks)


def _look(sign: str) -> dict[str, Any]:
    """Return how a sign is drawn, as arguments of a `Patch`."""
    fill, pattern, ink = LOOKS[sign]
    return {"facecolor": STATES[fill], "edgecolor": STATES[ink], "hatch": pattern, "linewidth": 0.0}


def _task(number: int) -> dict[str, Any]:
    """Return how nodes of the cell type with this number are drawn."""
    return {"facecolor": STATES[f"task-{number % NUM_TASKS}"], "linewidth": 0.0}


def _by_iteration(run: Played) -> dict[str, list[Span]]:
    """Return what each request does, in columns: iterations, and pauses with waiting requests."""
    history = run.history
    everything = max(1, len(columns_of(history))), max(1, len(history.stories))
    found: dict[str, list[Span]] = {}
    for name, row in draw_timeline(history, *everything).rows.items():
        spans = found[name] = []
        at = 0
        for sign, group in groupby(row):
            stop = at + len(list(group))
            if sign in (ENDED, BROKEN_OFF):  # the request computes until then
                own = history.stories[name]
                last = [history.iterations[i] for i in own.iterations if history.iterations[i].end_s == own.ended_s]
                if last:
                    spans.append(Span(sign_of(own, last[-1], letters_of(history)), at, stop))
            if sign != " ":
                spans.append(Span(sign, at, stop))
            at = stop
    return found


def _by_time(run: Played) -> dict[str, list[Span]]:
    """Return what each request does, in milliseconds; later spans cover earlier ones."""
    history, letters, idle = run.history, letters_of(run.history), idle_rows(run.history)

    def spans(story: Story) -> Iterator[Span]:
        found = [Span(WAIT_SIGNS[wait.kind], wait.start_s * MS, wait.end_s * MS) for wait in story.waits]
        computed = [(i, sign_of(story, history.iterations[i], letters)) for i in story.iterations]
        for i, sign in (*computed, *((i, IDLE_SIGN) for i in idle.get(story.id, ()))):
            found.append(Span(sign, history.iterations[i].start_s * MS, history.iterations[i].end_s * MS))
        if story.admitted_s is not None:
            yield from _held(found, story.admitted_s * MS, history.end_of(story) * MS)
        yield from found
        if story.ended_s is not None:
            yield Span(ENDED if story.finished else BROKEN_OFF, story.ended_s * MS, story.ended_s * MS)

    return {story.id: [*spans(story)] for story in history.stories.values()}


def _held(spans: list[Span], start: float, stop: float) -> Iterator[Span]:
    """Yield the parts of a request's time on the device that no other span covers."""
    for span in sorted(spans, key=lambda one: one.start):
        if span.start > start:
            yield Span(HELD, start, min(stop, span.start))
        if (start := max(start, span.stop)) >= stop:
            return
    yield Span(HELD, start, stop)


def step_ticks(axes: Axes, run: Played, most: int = 24) -> None:
    """Label at most `most` columns with the numbers of their iterations."""
    indices = [(at, one.iteration) for at, one in enumerate(columns_of(run.history)) if one.iteration is not None]
    numbers = [(at, run.history.iterations[index].step) for at, index in indices]
    apart = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if len(numbers) <= n * most)
    shown = [(at, number) for at, number in numbers if number % apart == 0]
    axes.set_xticks([at + 0.5 for at, _ in shown], [str(number) for _, number in shown])
