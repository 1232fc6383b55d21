"""Prints answers on stdout, and draws a live picture of the run on stderr.

Drawing takes at most two percent of the run: between two drawings lie at least 0.1 s, and at least fifty times the
duration of the last drawing. Answers that end between two drawings are printed at the next drawing, so that stdout and
stderr do not mix on a terminal. Without a picture, answers are printed at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minifuse.cli.requests import Workload
from minifuse.cli.text import UNITS, console, counted, time_left
from minifuse.core.errors import MinifuseError, one_line
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import Request
from minifuse.serve.engine import ServingEngine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.refusals import Refusals
from minifuse.show.figures import in_bytes
from minifuse.show.summary import picture, timeline_of
from minifuse.trace.history import History, Story
from minifuse.trace.log import Event

MIN_GAP_S = 0.1
COST_SHARE = 0.02
AROUND_LANES = 12  # lines of the picture that are no lanes


def lanes(events: Iterable[Event], width: int, rows: int) -> Iterator[str]:
    """Draw the lanes of at most `rows` requests: running, then waiting, then latest to end."""

    def urgency(story: Story) -> tuple[bool, bool, float]:
        return story.ended_s is not None, story.admitted_s is None, -(story.ended_s or 0.0)

    history = History.of(events)
    timeline = timeline_of(history, width, len(history.stories))
    shown = {story.id for story in sorted(history.by_arrival, key=urgency)[:rows]}
    kept = {name: signs for name, signs in timeline.rows.items() if name in shown}
    yield from picture(history, replace(timeline, rows=kept, left_out=len(timeline.rows) - len(kept)), width)


class Display:
    """Counts what completed iterations report, and draws the counts now and then.

    Args:
        title: names what is being served, such as `orca on tiny`.
        engine: the running engine, whose trace's header has the bytes per slot of memory.
        live: whether to draw the picture if stderr is a terminal. Give False if other lines are written to stderr.
        lanes: whether to draw a lane per request, and leave the last picture standing. The trace must keep its events.
    """

    def __init__(
        self,
        title: str,
        workload: Workload,
        engine: ServingEngine,
        live: bool = True,
        lanes: bool = False,
    ) -> None:
        self._title = title
        requests = workload.requests
        self._total = len(requests)
        self._unit = counted(requests)
        self._refusals = Refusals(requests)
        self._engine = engine
        self._slot_bytes = engine.trace.header["kv_bytes_per_token"]
        self._of_cells = workload.source.kind == "cells"
        self._work, self._memory = UNITS[workload.source.kind]
        self._out = console()
        self._err = console(stderr=True)
        self._is_live = live and sys.stderr.isatty() and not self._err.is_dumb_terminal
        self._lanes = lanes
        self._live: Live | None = None
        self._held: list[tuple[Console, Text]] = []
        self._next_s = 0.0
        self._running: set[str] = set()
        self._made = self._ended = 0  # tokens or nodes made, and requests ended
        self._began = time.perf_counter()
        self._report: StepReport | None = None

    def __enter__(self) -> Display:
        if self._is_live:
            self._draw()  # before the run begins, since the first drawing takes longest
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with uninterrupted():
            self._clear()
            if kind is None or not issubclass(kind, BrokenPipeError):
                self._print_held()
                if self._lanes:
                    self._err.print(self._picture())
                self._held += [(self._err, Text(f"error: {one_line(rest)}")) for rest in self._refusals.rest()]
                self._print_held()

    def answer(self, line: Text | None) -> None:
        """Count an answered request, and print its line, if any, on stdout."""
        self._ended += 1
        if line is not None:
            self._print(self._out, line)

    def refused(self, request: Request, why: str) -> None:
        """Print on stderr why a request was refused, unless the same cause was printed often."""
        self._ended += 1
        if (sentence := self._refusals.sentence(request, why)) is not None:
            self._print(self._err, Text(f"error: {one_line(sentence)}"))

    def step(self, report: StepReport) -> None:
        """Count a completed iteration, and draw if a drawing is due."""
        self._made += len(report.plan.work) if self._of_cells else sum(map(len, report.tokens.values()))
        self._running.update(report.plan.admitted)
        self._running.difference_update(report.finished, report.plan.evicted)
        self._report = report
        now = time.perf_counter()
        due = now >= self._next_s or (self._held and not self._running)  # if nothing runs, the next step may be far off
        if self._is_live and due:
            with uninterrupted():
                self._draw()
            cost = time.perf_counter() - now
            self._next_s = now + max(MIN_GAP_S, cost / COST_SHARE)

    def _print(self, where: Console, line: Text) -> None:
        self._held.append((where, line))
        if self._live is None:
            self._print_held()

    def _print_held(self) -> None:
        """Print the lines that were held back; the terminal wraps them."""
        while self._held:
            where, line = self._held[0]
            where.print(line, soft_wrap=True)
            where.file.flush()
            self._held.pop(0)

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._held:
            self._clear()
            self._print_held()
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            return
        self._live = Live(
            self._picture(),
            console=self._err,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def _picture(self) -> Group:
        now, usage = (self._report.ended_s, self._report.usage) if self._report else (0.0, KVUsage(0, 0, 0))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._title),
            ProgressBar(self._total, self._ended, width=20),
            f"{self._ended}/{self._total} {self._unit}{time_left(self._ended, self._total, self._began)}",
        )
        self._running &= self._engine.sequences.keys()  # removes aborted requests
        waiting = len(self._engine.sequences) - len(self._running)
        speed = f"{self._made / now:,.0f}" if now > 0 else "-"
        figures = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for name in ("running", "waiting", f"{self._work}/s", f"{self._memory} in use"):
            figures.add_column(name, justify="right", no_wrap=True, header_style="dim")
        kv = f"{in_bytes(usage.used * self._slot_bytes)} of {in_bytes(usage.capacity * self._slot_bytes)}"
        figures.add_row(str(len(self._running)), str(waiting), speed, kv)
        if not self._lanes or self._report is None:
            return Group(bar, figures)
        try:
            lines = [*lanes(self._engine.trace.kept(), self._err.width, max(3, self._err.height - AROUND_LANES))]
        except MinifuseError as error:  # a plugin's stage may have decided something that cannot be drawn
            lines = [str(error)]
        return Group(bar, figures, Text("\n".join(lines), no_wrap=True, overflow="crop"))
