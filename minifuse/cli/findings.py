"""Shows and writes the findings of `minifuse reproduce`, and the progress towards them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from minifuse.cli.status import Status
from minifuse.cli.streams import print_result
from minifuse.cli.tables import BUSY, cut_to
from minifuse.cli.text import console, tell, time_left
from minifuse.execute.cores import usable_cores
from minifuse.io.output import whole_file, write_whole
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Conditions, Experiment, Finding, Say

SCHEMA, LIST_SCHEMA = "minifuse.reproduce/1", "minifuse.reproduce.list/1"
PIPE_WIDTH = 160  # width of tables if there is no terminal


def show_list(as_json: bool) -> None:
    """Print every figure on stdout."""
    rows = EXPERIMENTS.values()
    if as_json:
        listed = [{"name": row.name, "paper": row.paper, "figure": row.figure, "shows": row.shows} for row in rows]
        print_result(json.dumps({"schema": LIST_SCHEMA, "figures": listed}, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("name", "paper", "figure", "shows"):
        table.add_column(head, no_wrap=head != "shows", style="bold" if head == "name" else "")
    for row in rows:
        table.add_row(row.name, row.paper, row.figure, row.shows)
    groups = dict.fromkeys((row.group, row.paper) for row in rows)
    hints = [f"minifuse reproduce {group} runs all of {paper}'s." for group, paper in groups]
    console().print(table, "", *hints, sep="\n")


def show(row: Experiment, finding: Finding) -> None:
    """Print a finding on stdout: its tables, then its notes."""
    out = console()
    if not sys.stdout.isatty():
        out.width = PIPE_WIDTH
    out.print(Text.assemble((row.name, "bold"), f": {row.shows} ({row.paper}, {row.figure})."), soft_wrap=True)
    for panel in finding.tables:
        columns = panel.filled
        rows = [[column.cell(point) for column in columns] for point in panel.listed]
        tables = cut_to(out.width, [column.head for column in columns], rows, named=False)
        out.print("", Text(panel.title, "bold"), *tables, sep="\n")
    out.print()
    for note in finding.notes:
        out.print(Text(f"- {note}"), soft_wrap=True)
    out.print()
    out.file.flush()


def _markdown(row: Experiment, finding: Finding, source: dict[str, Any], shown: str) -> str:
    machine, versions = source["machine"], source["versions"]
    state = "" if source["clean"] else " with uncommitted changes"
    where = (
        f"Computed on {machine['processor']}, {machine['cores']} cores, torch {versions['torch']}, commit "
        f"{source['commit'] or 'unknown'}{state}."
    )
    lines = [f"# {row.name}: {row.paper}, {row.figure}", "", f"{row.shows[:1].upper()}{row.shows[1:]}.", ""]
    lines += [_shown(shown, row.name), ""] if shown else []
    for panel in finding.tables:
        columns = panel.filled
        heads = [" ".join(column.head.split()) for column in columns]
        lines += [f"## {panel.title}", "", _row(heads), _row(["---:"] * len(heads))]
        lines += [_row([column.cell(point) for column in columns]) for point in panel.listed]
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in (*finding.notes, where)), ""])


def _shown(stem: str, alt: str) -> str:
    """Return HTML that shows the picture's form for the reader's colour scheme."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.png">'
    return f'<picture>{dark}<img src="{stem}.png" alt="{alt}"></picture>'


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(folder: Path, scale: str, row: Experiment, finding: Finding, source: dict[str, Any]) -> None:
    """Write a finding to NAME.json and NAME.md; NAME-SCALE for another than the default scale.

    What was found before Ctrl-C came goes to NAME-interrupted, and replaces no whole finding. Its picture,
    NAME.png and NAME-dark.png, is written where matplotlib is installed.
    """
    name = row.name if scale == Conditions().scale else f"{row.name}-{scale}"
    path = folder / (f"{name}-interrupted" if finding.interrupted else name)
    data = json.dumps({"schema": SCHEMA, "provenance": source, "figures": [row.as_json(finding)]}, indent=2)
    drawn = _pictures(finding)
    shown = path.name if drawn else ""
    for ending, text in ((".json", data + "\n"), (".md", _markdown(row, finding, source, shown))):
        write_whole(path.with_name(f"{path.name}{ending}"), text)
    for ending, picture in drawn.items():
        with whole_file(path.with_name(f"{path.name}{ending}")) as file:
            file.buffer.write(picture)


def _pictures(finding: Finding) -> dict[str, bytes]:
    """Return the picture's two forms, by the ending of their names; empty if there is none."""
    try:
        from minifuse.papers.picture import dark_form, picture
    except ModuleNotFoundError as error:
        tell(f"note: no picture is drawn, for {error.name} is not installed: pip install 'minifuse[tutorials]'.")
        return {}
    drawn = picture(finding)
    return {} if drawn is None else {".png": drawn, "-dark.png": dark_form(drawn)}


def beside_others(finding: Finding, cores: float | None) -> Finding:
    """Add to a finding in real time how many cores other processes used meanwhile.

    Args:
        cores: their average, or None if unknown.
    """
    if cores is None or finding.facts.get("clock") != "real":
        return finding
    note = f"Other processes used {cores:.2f} of {len(usable_cores())} cores meanwhile"
    note += ", so these times compare with no others." if cores >= BUSY else "."
    return replace(finding, facts={**finding.facts, "other_cores": cores}, notes=(*finding.notes, note))


class TimeIsUp(Exception):
    """A figure has taken as long as it may."""


class Progress(Say):
    """Shows on stderr what is measured next; draws nothing during a measurement.

    Args:
        seconds: how long the figure may take. The first report after that raises `TimeIsUp`.
    """

    def __init__(self, name: str, seconds: float | None = None) -> None:
        self.status = Status(name)
        super().__init__(self._tell)
        self._began = 0.0
        self._ends = None if seconds is None else time.perf_counter() + seconds

    def expect(self, reports: int) -> None:
        super().expect(reports)
        self._began = time.perf_counter()

    def so_far(self, why: str) -> Finding:
        """Return what was found before Ctrl-C came or the time was up."""
        done = max(0, self.said - 1)
        when = f"after {done} of {self.expected} measurements" if done < self.expected else "before the last results"
        note = f"{why} {when}: the rest is missing."
        return Finding({}, tuple(self.kept.values()), (note,), interrupted=True)

    def _tell(self, what: str) -> None:
        if self._ends is not None and time.perf_counter() > self._ends:
            raise TimeIsUp
        done = self.said - 1
        left = f" ({done} of {self.expected} done{time_left(done, self.expected, self._began)})"
        self.status.say(what, left if self.expected else "")
