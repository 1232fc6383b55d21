"""The nouns of `minifuse reproduce`: an experiment is a figure or table of a paper, and running it gives a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCALES = ("quick", "cpu", "paper")
SHARE = 2.0  # rates up to this are shares of the measured peak, rates above it requests per second

Value = float | int | str | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the reader may choose; None leaves the choice to the experiment, which knows what suits its scale.

    `quick` shows in seconds that everything works, `cpu` is real time on a small machine, `paper` is the paper's own
    scale: in virtual time where there is a cost model for it, otherwise on a GPU. `tokens` is the length of a request's
    answer, or the number of its queries where a figure measures attention alone; `rounds` is raised where so few cannot
    be measured. The dtype `auto` is the half precision that suits the scale's machine, or float32 where the paper
    computed in it.

    `hidden` is the hidden size of a model of cells, `rates` are the rates at which requests arrive, and `requests` is
    the number of requests. An experiment lists in `takes` which of these it uses.
    """

    scale: str = "cpu"
    model: str | None = None
    dtype: str = "auto"
    tokens: int | None = None
    rounds: int = 1
    seed: int = 0
    hidden: int | None = None
    rates: tuple[float, ...] | None = None  # ascending; shares of the measured peak, or requests per second
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a figure: where it lies, what was measured there, and what the paper's text gives for it."""

    at: Mapping[str, Value]
    measured: Mapping[str, Value]
    paper: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table that a panel is printed as: which value of a point, and its format.

    The head has two lines; neighbours may share the first. Without a `form` a number has three digits, or all of a
    larger whole part.

    >>> Column("speed-up\\npaper", "paper", "speedup", "{:.1f}x").cell(Point({}, {}, {"speedup": 3.4}))
    '3.4x'
    """

    head: str
    part: Literal["at", "measured", "paper"]
    key: str
    form: str | None = None

    def cell(self, point: Point) -> str:
        """The value as text; - where there is none."""
        values: Mapping[str, Value] = getattr(point, self.part)
        value = values.get(self.key)
        if value is None:
            return "-"
        if self.form is not None:
            return self.form.format(value)
        return f"{value:,.0f}" if isinstance(value, float) and abs(value) >= 999.5 else f"{value:.3g}"


def beside(head: str, key: str, form: str | None = None, here: str | None = None) -> tuple[Column, Column]:
    """The paper's value beside the measured one, in the same `form` unless `here` gives another."""
    return Column(f"{head}\npaper", "paper", key, form), Column(f"{head}\nhere", "measured", key, here or form)


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure."""

    title: str
    columns: tuple[Column, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an experiment: its conditions as plain values, the panels, and notes on how to read them."""

    facts: Mapping[str, Any]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]
    interrupted: bool = False  # Ctrl-C came: these are the points that had been measured by then


class Say:
    """Reports what is being measured, how many reports are to come, and what has been found by then.

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
        """Announce the number of reports to come, so that the time left can be told; those before it count no more."""
        self.said, self.expected = 0, reports

    def keep(self, panel: Panel) -> None:
        """Keep what has been found so far, in the place of what was kept under this title: Ctrl-C may come."""
        self.kept[panel.title] = panel


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
