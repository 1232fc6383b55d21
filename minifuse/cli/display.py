"""Output while requests are served: answers on stdout, and on a terminal a live picture of the run on stderr.

The picture costs at most one percent of the run, and with lanes two: it is drawn at most ten times a second, and never
again before a hundred times, or fifty times, the last drawing's cost has passed. Answers that end in between wait for
it, so that stdout and stderr do not write into each other on a terminal; without a picture they are printed at once.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minifuse.cli.lanes import Lanes
from minifuse.cli.progress import ProgressLines
from minifuse.cli.requests import Workload
from minifuse.cli.text import UNITS, console, counted, time_left
from minifuse.core.errors import one_line
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import Request
from minifuse.serve.engine import ServingEngine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.refusals import Refusals

MIN_GAP_S = 0.1
COST_SHARE = 0.01
LANES_COST_SHARE = 0.02
SIZES = ("B", "KiB", "MiB")
AROUND_LANES = 8  # lines of the picture that are no lanes, with one of their legend


def in_use(used: int, capacity: int) -> str:
    """Bytes of memory, each in a unit in which it does not vanish.

    >>> in_use(3 * 2**20 // 2, 64 * 2**20), in_use(2304, 2**20), in_use(2304, 300_000), in_use(0, 512)
    ('1.5 of 64 MiB', '2.2 KiB of 1 MiB', '2.2 of 293 KiB', '0 of 512 B')
    """
    part, whole = (
        max(i for i in range(len(SIZES)) if not i or size >= 1024**i) for size in (used or capacity, capacity)
    )
    unit = f" {SIZES[part]}" if part != whole else ""
    digits = 1 if part and used else 0
    return f"{used / 1024**part:.{digits}f}{unit} of {capacity / 1024**whole:.0f} {SIZES[whole]}"


class Display:
    """Counts what the steps report, and draws it now and then.

    Args:
        title: what is being served, such as `orca on tiny`.
        engine: that runs; the header of its trace says how many bytes a slot of memory has.
        live: draw the picture, where stderr is a terminal; not if other lines are written there.
        lanes: the picture has lanes and memory, and its last state is left standing; where there is no terminal, a line
            is written for every so many iterations.
    """

    def __init__(
        self, title: str, workload: Workload, engine: ServingEngine, live: bool = True, lanes: bool = False
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
        self._lanes = Lanes(engine, requests) if lanes and self._is_live else None
        self._told = ProgressLines(engine, self._total) if lanes and not self._is_live else None
        self._live: Live | None = None
        self._held: list[tuple[Console, Text]] = []
        self._next_s = 0.0
        self._running: set[str] = set()
        self._made = self._ended = 0  # tokens or nodes, and requests
        self._began = time.perf_counter()
        self._report: StepReport | None = None

    def __enter__(self) -> Display:
        if self._is_live:
            self._draw()  # the first costs the most: before the run begins
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with uninterrupted():
            self._clear()
            if kind is None or not issubclass(kind, BrokenPipeError):
                if self._lanes is not None:
                    self._print_held()
                    self._err.print(self._picture())
                if self._told is not None and (line := self._told.last()) is not None:
                    self._held.append((self._err, Text(line)))
                self._held += [(self._err, Text(f"error: {one_line(rest)}")) for rest in self._refusals.rest()]
                self._print_held()

    def answer(self, line: Text | None) -> None:
        """A request has been answered: show its line, if it has one, on stdout."""
        self._ended += 1
        if line is not None:
            self._print(self._out, line)

    def refused(self, request: Request, why: str) -> None:
        """A request was refused: say why on stderr, unless it is one of many with the same cause."""
        self._ended += 1
        if (sentence := self._refusals.sentence(request, why)) is not None:
            self._print(self._err, Text(f"error: {one_line(sentence)}"))

    def step(self, report: StepReport) -> None:
        """An iteration has completed."""
        if self._told is not None and (line := self._told.step(report)) is not None:
            self._print(self._err, Text(line))
        if not self._is_live:
            return
        if self._lanes is not None:
            self._lanes.step(report)
        self._made += len(report.plan.work) if self._of_cells else sum(map(len, report.tokens.values()))
        self._running.update(report.plan.admitted)
        self._running.difference_update(report.finished, report.plan.evicted)
        self._report = report
        now = time.perf_counter()
        if now >= self._next_s or (self._held and not self._running):  # in a lull the next step may be far away
            with uninterrupted():
                self._draw()
            cost = time.perf_counter() - now
            share = COST_SHARE if self._lanes is None else LANES_COST_SHARE
            self._next_s = now + max(MIN_GAP_S, cost / share)

    def _print(self, where: Console, line: Text) -> None:
        self._held.append((where, line))
        if self._live is None:
            self._print_held()

    def _print_held(self) -> None:
        """Print what was held back. A line is one line: wrapping it is left to the terminal."""
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
        if self._live is None:
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
        else:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        now, usage = (self._report.ended_s, self._report.usage) if self._report else (0.0, KVUsage(0, 0, 0))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._title),
            ProgressBar(self._total, self._ended, width=20),
            f"{self._ended}/{self._total} {self._unit}{time_left(self._ended, self._total, self._began)}",
        )
        self._running &= self._engine.sequences.keys()  # without the aborted
        waiting = len(self._engine.sequences) - len(self._running)
        speed = f"{self._made / now:,.0f}" if now > 0 else "-"
        figures = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for name in ("running", "waiting", f"{self._work}/s", f"{self._memory} in use"):
            figures.add_column(name, justify="right", no_wrap=True, header_style="dim")
        kv = in_use(usage.used * self._slot_bytes, usage.capacity * self._slot_bytes)
        figures.add_row(str(len(self._running)), str(waiting), speed, kv)
        if self._lanes is None:
            return Group(bar, figures)
        lines = self._lanes.lines(self._err.width, max(3, self._err.height - AROUND_LANES))
        return Group(bar, figures, Text("\n".join(lines), no_wrap=True, overflow="crop"))
