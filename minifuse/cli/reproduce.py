"""`minifuse reproduce`: a figure of a paper measured again, the paper's numbers beside those of this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from minifuse.cli.asked import DTYPES
from minifuse.cli.text import console
from minifuse.errors import UsageError
from minifuse.parsing import did_you_mean, one_of, parse_float, parse_int
from minifuse.reproduce import EXPERIMENTS, experiments
from minifuse.reproduce.experiment import SCALES, SHARE, Conditions, Experiment, Finding, Panel
from minifuse.reproduce.provenance import provenance
from minifuse.serve.interrupt import uninterrupted

__all__ = ["AskedOfFigure", "reproduce"]

SCHEMA, LIST_SCHEMA = "minifuse.reproduce/1", "minifuse.reproduce.list/1"
FAILED = 1
MANY = 2**31 - 1
MIN_TOKENS = 4  # lengths are given down to a quarter of a request's tokens
MAX_ROUNDS = 1000
MAX_HIDDEN, MAX_REQUESTS, MAX_RATES = 65536, 1_000_000, 64
MIN_REQUESTS = 8  # of fewer there are no percentiles
LEAST_SHARE, FASTEST = 1e-3, 1e9
CHOICES = ("model", "tokens", "hidden", "rates", "requests")  # that not every figure takes
PIPE_WIDTH = 160  # of tables where no terminal limits them


@dataclass(frozen=True)
class AskedOfFigure:
    """What was typed after `minifuse reproduce`, as text."""

    name: str | None
    list: bool
    scale: str
    model: str | None
    dtype: str
    tokens: str | None
    rounds: str
    seed: str
    json: bool
    out: str | None
    hidden: str | None = None
    rates: str | None = None
    requests: str | None = None


def reproduce(asked: AskedOfFigure) -> int:
    """Run the figures asked for and return the exit code: 1 if that was interrupted.

    Raises:
        UsageError: a name or a value is wrong; nothing has been started.
    """
    conditions = _conditions(asked)
    if asked.list:
        if asked.name is not None:
            raise UsageError(f"--list and {asked.name!r} are both given: give one of them.")
        _show_list(asked.json)
        return 0
    if asked.name is None:
        raise UsageError(
            "No figure was named: give one of minifuse reproduce --list, such as flover-fig7, or a paper, such as "
            "flover."
        )
    rows = experiments(asked.name)
    _check_taken(asked, rows)
    folder = None if asked.out is None else _folder(asked.out)
    runs = [row.prepare(conditions) for row in rows]  # whatever cannot run is refused before the first one does
    source = provenance()  # of the code that is about to run
    figures: list[dict[str, Any]] = []
    interrupted = False
    for row, run in zip(rows, runs, strict=True):
        try:
            with _Progress(row.name) as progress:
                finding = run(progress.say)
        except KeyboardInterrupt:
            interrupted = True
            break
        with uninterrupted():
            figures.append(row.as_json(finding))
            if folder is not None:
                _write(folder / f"{row.name}{_suffix(conditions)}", row, finding, source)
            if not asked.json:
                _show(row, finding)
    if asked.json and figures:
        print(json.dumps({"schema": SCHEMA, "provenance": source, "figures": figures}))
    if interrupted:
        left = ", ".join(row.name for row in rows[len(figures) :])
        print(f"error: Interrupted: nothing is shown of {left}: run it again.", file=sys.stderr, flush=True)
    return FAILED if interrupted else 0


def _conditions(asked: AskedOfFigure) -> Conditions:
    for flag, given, allowed in (("--scale", asked.scale, SCALES), ("--dtype", asked.dtype, ("auto", *DTYPES))):
        if given not in allowed:
            raise UsageError(f'{flag} is "{given}"{did_you_mean(given, allowed)}: give {one_of(allowed)}.')
    return Conditions(
        scale=asked.scale,
        model=asked.model,
        dtype=asked.dtype,
        tokens=None if asked.tokens is None else parse_int(asked.tokens, "--tokens", MIN_TOKENS, MANY),
        rounds=parse_int(asked.rounds, "--rounds", 1, MAX_ROUNDS),
        seed=parse_int(asked.seed, "--seed", 0, MANY),
        hidden=None if asked.hidden is None else parse_int(asked.hidden, "--hidden", 1, MAX_HIDDEN),
        rates=None if asked.rates is None else _rates(asked.rates),
        requests=None
        if asked.requests is None
        else parse_int(asked.requests, "--requests", MIN_REQUESTS, MAX_REQUESTS),
    )


def _rates(text: str) -> tuple[float, ...]:
    """Shares of the peak if none is above `SHARE`, requests per second if all are; ascending, each once."""
    parts = text.split(",")
    if len(parts) > MAX_RATES:
        raise UsageError(f"--rates has {len(parts)} rates, each of which is a run: give at most {MAX_RATES}.")
    rates = tuple(sorted({parse_float(part, "A rate of --rates", LEAST_SHARE, FASTEST) for part in parts}))
    if rates[0] <= SHARE < rates[-1]:
        raise UsageError(
            f'--rates is "{text}", which mixes shares of the measured peak (up to {SHARE:g}) with requests per second: '
            "give one or the other."
        )
    return rates


def _check_taken(asked: AskedOfFigure, rows: tuple[Experiment, ...]) -> None:
    """Refuse an option that none of these figures has a use for."""
    for option in CHOICES:
        if getattr(asked, option) is not None and not any(option in row.takes for row in rows):
            takers = [row.name for row in EXPERIMENTS.values() if option in row.takes]
            raise UsageError(
                f"--{option} is given, and {asked.name} has no use for it: leave it out, or name a figure that has, "
                f"such as {takers[0]}."
            )


def _folder(typed: str) -> Path:
    """A folder that exists and can be written to; writing is the only sure test."""
    try:
        with tempfile.TemporaryFile(dir=typed):
            return Path(typed)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--out is {typed!r}, which cannot be written to ({reason}): give a folder that exists and that you may "
            "write to."
        ) from None


def _show_list(as_json: bool) -> None:
    rows = EXPERIMENTS.values()
    if as_json:
        listed = [{"name": row.name, "paper": row.paper, "figure": row.figure, "shows": row.shows} for row in rows]
        print(json.dumps({"schema": LIST_SCHEMA, "figures": listed}, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("name", "paper", "figure", "shows"):
        table.add_column(head, no_wrap=head != "shows", style="bold" if head == "name" else "")
    for row in rows:
        table.add_row(row.name, row.paper, row.figure, row.shows)
    groups = dict.fromkeys((row.group, row.paper) for row in rows)
    said = [f"minifuse reproduce {group} runs all of {paper}'s." for group, paper in groups]
    console().print(table, "", *said, sep="\n")


def _show(row: Experiment, finding: Finding) -> None:
    """A finding on stdout: its tables, then what their reader must know."""
    out = console()
    if not sys.stdout.isatty():
        out.width = PIPE_WIDTH
    out.print(Text.assemble((row.name, "bold"), f": {row.shows} ({row.paper}, {row.figure})."), soft_wrap=True)
    for panel in finding.panels:
        out.print("", Text(panel.title, "bold"), _table(panel), sep="\n")
    out.print()
    for note in finding.notes:
        out.print(Text(f"- {note}"), soft_wrap=True)
    out.print()
    out.file.flush()


def _table(panel: Panel) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    before = ""
    for column in panel.columns:
        first, _, second = column.head.partition("\n")
        table.add_column(f"{'' if first == before else first}\n{second}", justify="right", overflow="fold")
        before = first
    for point in panel.points:
        table.add_row(*(column.cell(point) for column in panel.columns))
    return table


def _markdown(row: Experiment, finding: Finding, source: dict[str, Any]) -> str:
    machine, versions = source["machine"], source["versions"]
    state = "" if source["clean"] else " with uncommitted changes"
    where = (
        f"Computed on {machine['processor']}, {machine['cores']} cores, torch {versions['torch']}, commit "
        f"{source['commit'] or 'unknown'}{state}."
    )
    lines = [f"# {row.name}: {row.paper}, {row.figure}", "", f"{row.shows[:1].upper()}{row.shows[1:]}.", ""]
    for panel in finding.panels:
        heads = [" ".join(column.head.split()) for column in panel.columns]
        lines += [f"## {panel.title}", "", _row(heads), _row(["---:"] * len(heads))]
        lines += [_row([column.cell(point) for column in panel.columns]) for point in panel.points]
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in (*finding.notes, where)), ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _suffix(conditions: Conditions) -> str:
    """What tells the files of one scale from those of another: the scale, unless it is the usual one."""
    return "" if conditions.scale == Conditions().scale else f"-{conditions.scale}"


def _write(path: Path, row: Experiment, finding: Finding, source: dict[str, Any]) -> None:
    """PATH.json and PATH.md, each whole or not at all."""
    data = json.dumps({"schema": SCHEMA, "provenance": source, "figures": [row.as_json(finding)]}, indent=2)
    for ending, text in ((".json", data + "\n"), (".md", _markdown(row, finding, source))):
        unfinished = path.with_name(f".{path.name}{ending}.part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path.with_name(f"{path.name}{ending}"))


class _Progress:
    """What is being measured, on stderr: one line that changes on a terminal, a line for each point elsewhere.

    Nothing is drawn in between: that would take time from what is measured.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._err = console(stderr=True)
        self._live: Live | None = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty() and not self._err.is_dumb_terminal:
            self._live = Live(
                Text(self._name),
                console=self._err,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            with uninterrupted():
                self._live.stop()

    def say(self, what: str) -> None:
        if self._live is not None:
            self._live.update(Text(f"{self._name}: {what}"), refresh=True)
        else:
            print(f"{self._name}: {what}", file=sys.stderr, flush=True)
