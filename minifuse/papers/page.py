"""Reads the page of a figure: a Markdown file with table columns and notes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any, Protocol, TypeVar

from minifuse.papers.experiment import Column, Conditions, Experiment, Finding, Kind, Panel, Say, Values
from minifuse.papers.numbers import shown

FOLDER = Path(__file__).parent
ITEM = re.compile(r"( *)-(?: \[(not )?([\w.]+)\])? ?(.*)")  # indent, condition, text
ALONE = re.compile(r"{(\w+)}")
VALUE = re.compile(r"(.*){(\w+)\.(\w+)(:.*)?}(.*)")  # text before, part, key, format, text after
RULE = set("|-: ")


def agreement(agrees: bool | Sequence[bool]) -> str:
    """Say whether a finding agrees with the paper, in one round or in each.

    >>> agreement(True), agreement([True, False]), agreement([False, False])
    ('agrees', 'undecided', 'does not agree')
    """
    rounds = (agrees,) if isinstance(agrees, bool) else agrees
    if all(rounds):
        return "agrees"
    return "undecided" if any(rounds) else "does not agree"


FORMATS: Mapping[str, Callable[[float], str]] = {
    "rate": shown,
    "times": "{:.2f}x".format,
    "terabytes": lambda rate: f"{rate / 1e12:.3f} TB/s",
    "ms": lambda seconds: shown(seconds * 1e3),
}


class _Filled(Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        if spec == "agrees":
            return agreement(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{self.format_field(one, spec)} at {key}" for key, one in value.items())
        if isinstance(value, (list, tuple)):
            return ", ".join(self.format_field(one, spec) for one in value)
        return FORMATS[spec](value) if spec in FORMATS else format(value, spec)


def tables(name: str) -> tuple[tuple[Column, ...], ...]:
    """Read the columns of each table in `name`.md.

    A table has a row of heads and a row of values. `<br>` divides the two lines of a head. A value is `{part.key}`, or
    `{part.key:form}` with text around it. A picture draws the columns whose heads end with `~y` over the column whose
    head ends with `~x`. Heads that end with `~log y` or `~log x` make that axis logarithmic.
    """
    lines = (FOLDER / f"{name}.md").read_text().splitlines()
    rows = [line[1:-1].split("|") for line in lines if line.startswith("|") and not set(line) <= RULE]
    return tuple(tuple(map(_column, heads, values)) for heads, values in zip(rows[::2], rows[1::2], strict=True))


def _column(head: str, value: str) -> Column:
    found = VALUE.fullmatch(value.strip())
    assert found is not None
    before, part, key, form, after = found.groups()
    text, _, axis = head.strip().partition(" ~")
    log, name = axis.startswith("log "), axis.removeprefix("log ")
    form = form and f"{before}{{{form}}}{after}"
    return Column(text.replace("<br>", "\n"), part, key, form, axis=name or None, log=log)  # type: ignore[arg-type]


def notes(name: str, **values: Any) -> tuple[str, ...]:
    """Fill in the notes of `name`.md: the list items below its tables.

    `{value}` stands for one of `values`, with a format of `str.format` or of `FORMATS`; several values are separated by
    commas. An item that consists of one `{value}` stands for a sequence of notes. A nested item continues the note of
    its parent. An item that begins with `[value]` is left out, with its nested items, if the value is false; one that
    begins with `[not value]`, if it is true.
    """
    filled, found = _Filled(), list[str]()
    left_out: int | None = None  # the indent of an item that is left out
    for indent, negated, condition, text in _items((FOLDER / f"{name}.md").read_text()):
        if left_out is not None and indent > left_out:
            continue
        left_out = None
        if condition and bool(filled.get_field(condition, (), values)[0]) == bool(negated):
            left_out = indent
        elif not indent and (alone := ALONE.fullmatch(text)) and not isinstance(values[alone[1]], str):
            found += values[alone[1]]
        elif indent:
            between = "" if text[0] in ",;:." or not found[-1] else " "
            found[-1] += between + filled.vformat(text, (), values)
        else:
            found.append(filled.vformat(text, (), values))
    return tuple(found)


class Setting(Protocol):
    """Describes how a figure is measured: conditions as plain values, and notes on them."""

    def start(self, say: Say) -> None: ...

    def described(self) -> dict[str, Any]: ...

    def notes(self) -> tuple[str, ...]: ...


S = TypeVar("S", bound=Setting)


class Drawn:
    """The results of a figure: panels, facts apart from the conditions, values for the notes."""

    def __init__(self, panels: Iterable[Panel], facts: Values | None = None, **values: Any) -> None:
        self.panels, self.facts, self.values = panels, facts or {}, values


Draw = Callable[[S, Say], Drawn]


def spec(
    name: str,
    number: str,
    shows: str,
    make: Callable[[Conditions], S],
    *,
    takes: Iterable[str] = ("model", "tokens"),
    kind: Kind = "fig",
    page: str = "",
    **values: Any,
) -> Callable[[Draw[S]], Experiment]:
    """Return a decorator that turns a measuring function into a figure's experiment.

    Args:
        name: the name of the paper.
        make: builds the setting; raises `UsageError` if it cannot run.
        page: the path of the page in this folder; by default, it follows from the paper and the number.
        values: values for the notes that are the same in every run.
    """
    page = page or f"{name.lower()}/{kind}{number}".replace(".", "_")

    def experiment(draw: Draw[S]) -> Experiment:
        def run(setting: S, say: Say) -> Finding:
            setting.start(say)
            drawn = draw(setting, say)
            said = notes(page, setting=setting, conditions=setting.notes(), **values, **drawn.values)
            return Finding({**setting.described(), **drawn.facts}, tuple(drawn.panels), said)

        return Experiment(
            name, number, shows, lambda conditions: partial(run, make(conditions)), frozenset(takes), kind
        )

    return experiment


def _items(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield indent, negation, condition and text of each item, its lines joined."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("-"):
            lines.append(line)
        elif lines and line.strip():
            lines[-1] += f" {line.strip()}"
    for line in lines:
        item = ITEM.fullmatch(line)
        assert item is not None
        indent, negated, condition, said = item.groups()
        yield len(indent), negated, condition, said
