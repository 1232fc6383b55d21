"""Draws the panels of a figure, with the paper's points and ours, light and dark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib import colormaps, image
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from minifuse.papers.experiment import Column, Finding, Panel, Point

WIDTH, HEIGHT, DPI = 6.4, 3.6, 120
MANY = 16  # names of a panel that need the whole width
FEW = 4  # labels of a legend that fit into a panel; more stand beside it
TICKS = 1, 2, 5  # of each decade of a logarithmic axis
NAME = Column("", "at", "name")
COLOURS = 10  # of matplotlib's own cycle: with more lines, one of twenty
PAPER = {"color": "black", "marker": "x", "linestyle": "none"}
KEPT, LIFT = 6, 0.6  # KEPT: times its chroma: the share of its lightness that a colour keeps in the dark form
MARKERS = "x+1*"  # of the paper's points that no column has


def picture(finding: Finding) -> bytes | None:
    """Return a PNG with the panels that have columns to draw, or None."""
    drawn = [panel for panel in finding.panels if any(column.axis == "y" for column in panel.filled)]
    if not drawn:
        return None
    wide = any(len(panel.points) > MANY and _named(panel) for panel in drawn)
    across = 1 if wide else min(2, len(drawn))
    down = -(-len(drawn) // across)
    figure = Figure(figsize=(2 * WIDTH if wide else WIDTH * across, HEIGHT * down), dpi=DPI, layout="constrained")
    for number, panel in enumerate(drawn):
        _draw(figure.add_subplot(down, across, number + 1), panel)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def dark_form(drawn: bytes) -> bytes:
    """Return a PNG for dark pages: greys are inverted, colours stay.

    A grey of lightness L gets (1 - L)^LIFT: white becomes black, and light grey a grey that is seen on black. A colour
    of chroma c (its largest less its smallest channel) keeps the share min(1, KEPT * c) of its own lightness.
    """
    pixels = image.imread(io.BytesIO(drawn), format="png")
    colours = pixels[..., :3]
    most, least = colours.max(-1, keepdims=True), colours.min(-1, keepdims=True)
    lightness = (most + least) / 2
    grey = 1 - (KEPT * (most - least)).clip(max=1)
    pixels[..., :3] = (colours + grey * ((1 - lightness) ** LIFT - lightness)).clip(0, 1)
    written = io.BytesIO()
    image.imsave(written, pixels, format="png")
    return written.getvalue()


def _across(panel: Panel) -> Column:
    """Return the column over which the others are drawn."""
    named = NAME if "name" in panel.points[0].at else panel.columns[0]
    return next((column for column in panel.columns if column.axis == "x"), named)


def _named(panel: Panel) -> bool:
    """Whether bars are drawn over names."""
    across = _across(panel)
    return any(isinstance(across.value(point), str) for point in panel.points)


def _draw(axes: Axes, panel: Panel) -> None:
    """Draw a panel, as bars over names or as lines over numbers."""
    columns = [column for column in panel.filled if column.axis == "y"]
    if len(columns) > COLOURS:
        axes.set_prop_cycle(color=[colormaps["tab20"](number) for number in range(20)])
    across, over_names = _across(panel), _named(panel)
    names = [str(across.value(point)) for point in panel.points]
    for number, column in enumerate(columns):
        points = [point for point in panel.points if isinstance(column.value(point), float | int)]
        ys = [column.value(point) for point in points]
        spreads = [_spread(column, point) for point in points]
        label = " ".join(column.head.split())
        if over_names:
            width = 0.8 / len(columns)
            xs = [panel.points.index(point) + (number + 0.5) * width - 0.4 for point in points]
            axes.bar(xs, ys, width, label=label, color="lightgray" if column.part == "paper" else None)
            _error_bars(axes, xs, ys, spreads, "gray")
            continue
        xs = [point.measured[column.over] if column.over else across.value(point) for point in points]
        look: dict[str, Any] = PAPER if column.part == "paper" else {"marker": "."}
        (line,) = axes.plot(xs, ys, label=label, **look)
        _error_bars(axes, xs, ys, spreads, line.get_color())
    for marker, label in zip(MARKERS, dict.fromkeys(mark.label for mark in panel.marks), strict=False):
        marks = [mark for mark in panel.marks if mark.label == label]
        look = {**PAPER, "marker": marker, "zorder": 3}
        axes.plot([mark.x for mark in marks], [mark.y for mark in marks], label=label, **look)
    if over_names:
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    else:
        axes.set_xlabel(columns[0].over_head or " ".join(across.head.split()))
        if across.log:
            axes.set_xscale("log")
            _plain(axes.xaxis)
    axes.set_ylabel(_common(columns))
    if any(column.log for column in columns):
        axes.set_yscale("log")
        _plain(axes.yaxis)
    axes.set_title(panel.title, fontsize=9)
    labels = len(axes.get_legend_handles_labels()[1])
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if labels > FEW else {}
    axes.legend(fontsize=7, framealpha=0.5, **beside)
    axes.grid(alpha=0.3)


def _common(columns: Sequence[Column]) -> str:
    """Return the words of their heads that all columns share."""
    first, *others = (column.head.split() for column in columns)
    return " ".join(word for word in first if all(word in head for head in others)).replace("/ ", "/")


def _plain(axis: Axis) -> None:
    """Write few numbers on a logarithmic axis, without exponents."""
    axis.set_major_locator(LogLocator(subs=TICKS))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _spread(column: Column, point: Point) -> tuple[float, float]:
    """Return how far the rounds of a value lie below and above their median."""
    rounds: Sequence[float] = point.measured.get(f"{column.key}_rounds", ()) if column.part == "measured" else ()
    if not rounds:
        return 0.0, 0.0
    middle = median(rounds)
    return middle - min(rounds), max(rounds) - middle


def _error_bars(axes: Axes, xs: list[float], ys: list[float], spreads: list[tuple[float, float]], color: Any) -> None:
    if any(map(any, spreads)):
        axes.errorbar(xs, ys, list(zip(*spreads, strict=True)), fmt="none", ecolor=color, capsize=2, linewidth=1)
