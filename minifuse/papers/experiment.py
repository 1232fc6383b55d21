"""The nouns of `minifuse reproduce`: running an experiment, a figure or table, gives a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCALES = ("quick", "cpu", "paper")
SHARE = 2.0  # rates up to this are shares of the measured peak, rates above it requests per second

Values = dict[str, Any]  # by name: numbers, texts, several numbers, or None where there is none


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the reader may choose; None leaves the choice to the experiment.

    `quick` shows in seconds that everything works, `cpu` is real time on a small machine, `paper` is the paper's own
    scale: in virtual time where there is a cost model for it, otherwise on a GPU. `tokens` is the length of a request's
    answer, or the number of its queries where a figure measures attention alone. The dtype `auto` is the half precision
    that suits the scale's machine, or float32 where the paper computed in it. A round runs every contender once, on
    arrivals and lengths of its own; medians of the rounds count.

    `hidden` is the hidden size of a model of cells, `rates` are the rates at which requests arrive, and `requests` is
    the number of requests. An experiment lists in `takes` which of these it uses.
    """

    scale: str = "cpu"
    model: str | None = None
    dtype: str = "auto"
    tokens: int | None = None
    rounds: int | None = None
    seed: int = 0
    hidden: int | None = None
    rates: tuple[float, ...] | None = None  # ascending; shares of the measured peak, or requests per second
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A point: where it lies, and its values here and in the paper."""

    at: Values
    measured: Values
    paper: Values


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a panel's table: which value of a point, and its format.

    The head has two lines; neighbours may share the first. Without a `form` a number has three digits, or all of a
    larger whole part.

    >>> Column("speed-up\\npaper", "paper", "speedup", "{:.1f}x").cell(Point({}, {}, {"speedup": 3.4}))
    '3.4x'
    """

    head: str
    part: str  # of a point: at, measured or paper
    key: str
    form: str | None = None
    axis: Literal["x", "y"] | None = None  # on which the picture draws it
    log: bool = False
    over: str | None = None  # the measured value that is its x, if it has one of its own
    over_head: str | None = None  # the x axis' label then

    def value(self, point: Point) -> Any:
        """Return the value; None where there is none."""
        values: Values = getattr(point, self.part)
        return values.get(self.key)

    def cell(self, point: Point) -> str:
        """The value as text; - where there is none."""
        value = self.value(point)
        if value is None:
            return "-"
        if self.form is not None:
            return self.form.format(value)
        return f"{value:,.0f}" if isinstance(value, float) and abs(value) >= 999.5 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure."""

    title: str
    columns: tuple[Column, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an experiment: conditions as plain values, panels, and notes."""

    facts: Mapping[str, Any]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]
    interrupted: bool = False  # Ctrl-C came: these are the points that had been measured by then


class Say:
    """Reports progress, and keeps what has been found so far.

    Args:
        show: is told what is being measured.
    """

    def __init__(self, show: Callable[[str], None] = lambda what: None) -> None:
        self._show = show
        self.said = self.expected = 0  # reports so far, and in all
        self.kept: dict[str, Panel] = {}  # by title

    def __call__(self, what: str) -> None:
        self.said += 1
        self._show(what)

    def expect(self, reports: int) -> None:
        """Announce the number of reports to come; earlier reports no longer count."""
        self.said, self.expected = 0, reports

    def keep(self, panel: Panel) -> None:
        """Keep a panel instead of the last one of this title: Ctrl-C may come."""
        self.kept[panel.title] = panel


class Plot:
    """A panel that grows point by point; Ctrl-C keeps what has been found so far."""

    def __init__(self, say: Say, title: str, columns: tuple[Column, ...]) -> None:
        self.say, self.title, self.columns = say, title, columns
        self.points: list[Point] = []

    @property
    def panel(self) -> Panel:
        return Panel(self.title, self.columns, tuple(self.points))

    def add(self, at: Values, measured: Values, paper: Values | None = None) -> None:
        self.points.append(Point(at, measured, paper or {}))
        self.say.keep(self.panel)


Run = Callable[[Say], Finding]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of a paper that can be run again.

    `prepare` refuses what cannot be run (`UsageError`) before anything heavy is loaded, and returns what runs it.
    `takes` names the optional `Conditions` that this experiment uses.
    """

    paper: str
    number: str
    shows: str
    prepare: Callable[[Conditions], Run]
    takes: frozenset[str] = frozenset({"model", "tokens"})
    kind: Literal["fig", "table"] = "fig"

    @property
    def group(self) -> str:
        """The name that stands for all experiments of the paper."""
        return self.paper.lower()

    @property
    def name(self) -> str:
        return f"{self.group}-{self.kind}{self.number}"

    @property
    def figure(self) -> str:
        return f"{'Fig.' if self.kind == 'fig' else 'Table'} {self.number}"

    def as_json(self, finding: Finding) -> dict[str, Any]:
        """A finding in plain values."""
        return {
            "name": self.name,
            "paper": self.paper,
            "figure": self.figure,
            "shows": self.shows,
            **({"interrupted": True} if finding.interrupted else {}),
            **finding.facts,
            "panels": [
                {"title": panel.title, "points": [asdict(point) for point in panel.points]} for panel in finding.panels
            ],
            "notes": list(finding.notes),
        }
