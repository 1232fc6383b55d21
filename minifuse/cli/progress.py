"""`minifuse run --live` where there is no terminal: a line for every so many iterations."""

from __future__ import annotations

from minifuse.cli.tables import in_time
from minifuse.cli.text import first_few
from minifuse.core.errors import one_line
from minifuse.core.report import StepReport
from minifuse.serve.engine import ServingEngine

EVERY = 25  # iterations
SHOWN = 4  # ids on a line


class ProgressLines:
    """Sums up what the iterations since the last line did.

        iteration 25 at 14.9 ms: 5 of 16 ended, 8 run, 3 wait; 171 computed, 12% idle; memory 204 of 682; ended r1 r3

    Args:
        engine: that runs; its sequences are those that have not ended.
        total: requests in all.
    """

    def __init__(self, engine: ServingEngine, total: int) -> None:
        self._engine = engine
        self._total = total
        self._iterations = self._ended = self._computed = self._idle = 0
        self._names: dict[str, list[str]] = {"evicted": [], "ended": []}
        self._running: set[str] = set()
        self._report: StepReport | None = None  # the last one, if it is in no line yet

    def step(self, report: StepReport) -> str | None:
        """An iteration has completed: the line, if one is due."""
        plan = report.plan
        if not plan.work:
            return None
        self._report = report
        self._iterations += 1
        self._computed += plan.num_computed
        self._idle += plan.num_idle
        self._running.update(plan.admitted)
        self._running.difference_update(plan.evicted)
        self._running.difference_update(report.finished)
        self._names["evicted"] += plan.evicted
        self._names["ended"] += report.finished
        self._ended += len(report.finished)
        return self.last() if self._iterations % EVERY == 0 else None

    def last(self) -> str | None:
        """The line of the iterations that none has told of yet; None: there are none."""
        if self._report is None:
            return None
        usage, ended_s = self._report.usage, self._report.ended_s
        self._report = None
        alive = self._engine.sequences
        running = len(self._running & alive.keys())
        idle = f", {self._idle / self._computed:.0%} idle" if self._idle else ""
        happened = "".join(
            f"; {what} {first_few([one_line(name) for name in names], SHOWN, ' ')}"
            for what, names in self._names.items()
            if names
        )
        line = (
            f"iteration {self._iterations} at {in_time(ended_s)}: {self._ended} of {self._total} ended, "
            f"{running} run, {len(alive) - running} wait; {self._computed:,} computed{idle}; "
            f"memory {usage.used:,} of {usage.capacity:,}{happened}"
        )
        self._computed = self._idle = 0
        self._names = {"evicted": [], "ended": []}
        return line
