"""The types of `minifuse reproduce`: running an experiment, a figure or table, gives a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, cast

from minifuse.papers.numbers import spread

SCALES = ("quick", "cpu", "paper")
RANGE = "{:range}"
SHARE = 2.0  # rates up to this are shares of the measured peak, rates above it requests per second

Kind = Literal["fig", "table", ""]  # of an experiment; "": its number is its name
KINDS: dict[Kind, str] = {"fig": "Fig.", "table": "Table", "": ""}

T = TypeVar("T")
Values = dict[str, Any]  # by name; a value is a number, a text, a sequence of numbers, or None if unknown


@dataclass(frozen=True, slots=True)
class Conditions:
    """The choices of the user; None leaves a choice to the experiment.

    The scale `quick` shows in seconds that everything works. `cpu` runs in real time on a small machine. `paper` has
    the size of the paper's own experiment; it runs in virtual time if there is a cost model, otherwise on a GPU.
    `tokens` is the length of a request's answer; in a figure of attention only, it is the number of a request's
    queries. The dtype `auto` is the half precision that suits the scale's machine, or float32 if the paper used that.
    Each round runs every contender once, with newly drawn arrivals and lengths. Results are medians of the rounds.

    `hidden` is the hidden size of a model of cells, `rates` are the rates at which requests arrive, `requests` is the
    number of requests, and `conversations` is the path of a ShareGPT file, whose lengths replace the drawn ones. An
    experiment lists in `takes` which of these it uses.
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
    conversations: str | None = None
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, name: str, make: Callable[[Conditions], T]) -> T:
        """Return what was made under this name with these conditions, or make it.

        Figures that show the same runs share their setting, which measures them once.
        """
        if name not in self._made:
            self._made[name] = make(self)
        return cast(T, self._made[name])


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a panel: its position, and its values here and in the paper."""

    at: Values
    measured: Values
    paper: Values


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a panel's table: a value of each point, and its format.

    The head has two lines; neighbouring columns may share the first. Without a `form`, a text is shown as it is, and a
    number has three significant digits; from 1,000 on, a float is rounded to a whole number. The form `RANGE` shows the
    range of a value's rounds, which a point has under the value's key with `_rounds` behind it.

    >>> Column("speed-up\\npaper", "paper", "speedup", "{:.1f}x").cell(Point({}, {}, {"speedup": 3.4}))
    '3.4x'
    """

    head: str
    part: str  # the part of a point that holds the value: at, measured or paper
    key: str
    form: str | None = None
    axis: Literal["x", "y"] | None = None  # the picture's axis on which the value is drawn
    log: bool = False
    over: str | None = None  # key of the measured value over which this one is drawn, if not that of the x column
    over_head: str | None = None  # the x axis' label if `over` is given

    def value(self, point: Point) -> Any:
        """Return the column's value of a point, or None."""
        values: Values = getattr(point, self.part)
        if self.form != RANGE:
            return values.get(self.key)
        rounds = values.get(f"{self.key}_rounds", ())
        return rounds if len(rounds) > 1 else None

    def cell(self, point: Point) -> str:
        """Return the value of a point as text; - stands for None."""
        value = self.value(point)
        if value is None:
            return "-"
        if self.form == RANGE:
            return spread(value)
        if self.form is not None:
            return self.form.format(value)
        if isinstance(value, str):
            return value
        return f"{value:,.0f}" if isinstance(value, float) and abs(value) >= 999.5 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that the paper's text gives, drawn with others of its label."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure."""

    title: str
    columns: tuple[Column, ...]
    points: tuple[Point, ...]
    every: int = 1  # the table has every so many-th point
    marks: tuple[Mark, ...] = ()
    tabled: bool = True  # False: the panel is for the picture alone

    @property
    def listed(self) -> tuple[Point, ...]:
        """Return the points of the table."""
        return self.points[self.every - 1 :: self.every]

    @property
    def filled(self) -> tuple[Column, ...]:
        """Return the columns in which some point has a value."""
        return tuple(one for one in self.columns if any(one.value(point) is not None for point in self.points))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an experiment: conditions as plain values, panels, and notes."""

    facts: Mapping[str, Any]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]
    interrupted: bool = False  # by Ctrl-C; only the points measured until then are here

    @property
    def tables(self) -> tuple[Panel, ...]:
        """Return the panels that have a table."""
        return tuple(panel for panel in self.panels if panel.tabled)


class Say:
    """Reports progress, and keeps what has been found so far.

    Args:
        show: called with the name of what is being measured.
    """

    def __init__(self, show: Callable[[str], None] = lambda what: None) -> None:
        self._show = show
        self.said = self.expected = 0  # reports made so far, and reports in all
        self.kept: dict[str, Panel] = {}  # by title

    def __call__(self, what: str) -> None:
        self.said += 1
        self._show(what)

    def expect(self, reports: int) -> None:
        """Announce the number of reports to come; earlier reports no longer count."""
        self.said, self.expected = 0, reports

    def keep(self, panel: Panel) -> None:
        """Keep a panel in case of Ctrl-C; it replaces the one with the same title."""
        self.kept[panel.title] = panel


class Plot:
    """A panel that grows point by point; the points found survive Ctrl-C."""

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

    `prepare` returns a function that runs the experiment. If these conditions cannot run, it raises `UsageError` before
    anything heavy is loaded. `takes` names the optional `Conditions` that this experiment uses.
    """

    paper: str
    number: str
    shows: str
    prepare: Callable[[Conditions], Run]
    takes: frozenset[str] = frozenset({"model", "tokens"})
    kind: Kind = "fig"

    @property
    def group(self) -> str:
        """The name that stands for all experiments of the paper."""
        return self.paper.lower()

    @property
    def name(self) -> str:
        return f"{self.group}-{self.kind}{self.number}"

    @property
    def figure(self) -> str:
        return f"{KINDS[self.kind]} {self.number}".lstrip()

    def as_json(self, finding: Finding) -> dict[str, Any]:
        """Return a finding as plain values."""
        return {
            "name": self.name,
            "paper": self.paper,
            "figure": self.figure,
            "shows": self.shows,
            **({"interrupted": True} if finding.interrupted else {}),
            **finding.facts,
            "panels": [
                {
                    "title": panel.title,
                    "points": [asdict(point) for point in panel.points],
                    **({"marks": [asdict(mark) for mark in panel.marks]} if panel.marks else {}),
                }
                for panel in finding.panels
            ],
            "notes": list(finding.notes),
        }
