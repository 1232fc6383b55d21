"""Runs plans in real time, several workers in threads (Flover, V; BatchMaker, 2.5)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import TIMEOUT_MAX, Condition
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.report import Completion, Ran
from minifuse.core.request import Sequence
from minifuse.core.stages import Clock, RunPlan


class _Ended(NamedTuple):
    plan: Plan
    result: Callable[[], Ran]  # raises the error that the plan raised, if any
    ended_s: float


class RealExecutor:
    """Runs plans with `run`, and reports when each ended.

    With one worker, `wait` itself runs the plans, one at a time. With several workers, plans run in threads, which are
    started when first needed; `wait` raises their errors. All plans that ended since the last call of `wait` form one
    event, at the time of the latest end. If `wait` has a time limit, plans that ended after the limit belong to the
    next event, as in virtual time.

    If `issue` is given, it issues each worker's plans in order, without waiting for results, and `run` is not used.
    Another thread waits for each result, by calling the function that `issue` returned (BatchMaker, 2.5).

    Args:
        threads: how many plans the workers other than the first may compute at once; further plans wait. The first
            worker, which may be the main stream, never waits. By default there is no limit.
        depth: how many plans a worker may have in flight; if more than one, each worker has a thread of its own.
        on_close: stops everything else that belongs to the run.
        behind: begins the moves of a plan without work, while other plans run; the future that it returns resolves
            when the moves are complete. Without `behind`, such a plan is run like any other.
    """

    def __init__(
        self,
        run: RunPlan,
        clock: Clock,
        workers: int = 1,
        *,
        threads: int | None = None,
        depth: int = 1,
        issue: Callable[[Plan, dict[str, Sequence]], Callable[[], Ran]] | None = None,
        on_close: Callable[[], None] | None = None,
        behind: Callable[[Plan], Future[Ran]] | None = None,
    ) -> None:
        self._run = run
        self._behind = behind
        self._clock = clock
        self._on_close = on_close
        self._next: deque[tuple[Plan, dict[str, Sequence]]] = deque()  # submitted plans, if there is a single worker
        self._issue = issue
        self._threads: list[ThreadPoolExecutor] = []  # a pool for the first worker, then for the others
        if workers > 1 or issue:
            shares = [1] * workers if depth > 1 or issue else [1, threads or workers]
            self._threads = [ThreadPoolExecutor(share, f"minifuse-worker-{i}") for i, share in enumerate(shares)]
        # For each worker, a thread that waits for the plans that the worker has issued.
        self._waiting = [ThreadPoolExecutor(1, f"minifuse-waiting-{i}") for i in range(workers if issue else 0)]
        self._changed = Condition()  # guards the next two attributes
        self._ended: list[_Ended] = []  # plans that `wait` has not returned yet
        self._woken = False
        self._reported_s = 0.0  # the time of the last event; no later event is earlier

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        if self._behind is not None and not plan.work:
            ran = self._behind(plan)
        elif not self._threads:
            self._next.append((plan, sequences))
            return
        else:
            threads = self._threads[min(plan.worker, len(self._threads) - 1)]
            if self._issue is None:
                ran = threads.submit(self._run, plan, sequences)
            else:
                issued = threads.submit(self._issue, plan, sequences)
                ran = self._waiting[plan.worker].submit(lambda: issued.result()())
        ran.add_done_callback(lambda ran: self._note(plan, ran.result))

    def _note(self, plan: Plan, result: Callable[[], Ran]) -> None:
        """Record that a plan has ended now."""
        ended = _Ended(plan, result, self._clock.now())
        with self._changed:
            self._ended.append(ended)
            self._changed.notify()

    def wait(self, until: float | None) -> list[Completion]:
        until = math.inf if until is None else until
        if self._next:
            plan, sequences = self._next.popleft()
            ran = self._run(plan, sequences)
            if not self._ended:  # no plan without work has ended meanwhile: doing without the lock is ten times as fast
                self._reported_s = self._clock.now()
                return [Completion(plan, ran, self._reported_s)]
            self._note(plan, lambda: ran)
            until = math.inf  # plans without work that have ended meanwhile belong to the same event
        with self._changed:
            while not (self._ended or self._woken) and (now := self._clock.now()) < until:
                self._changed.wait(min(until - now, TIMEOUT_MAX))
            self._woken = False
            due = [ended for ended in self._ended if ended.ended_s <= until]
            self._ended = [ended for ended in self._ended if ended.ended_s > until]
        if not due:
            self._reported_s = max(self._reported_s, min(until, self._clock.now()))
            return []
        # A plan that ended before the last event may be recorded only after that event. It then becomes an event of its
        # own, slightly later: a replay would take two events at the same time for one.
        later_s = math.nextafter(self._reported_s, math.inf)
        self._reported_s = max(later_s, *(ended.ended_s for ended in due))
        due.sort(key=lambda ended: ended.plan.step)
        return [Completion(plan, result(), self._reported_s) for plan, result, _ in due]

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        """Wait for the plans that run, then stop all threads, and call `on_close`."""
        for threads in (*self._threads, *self._waiting):
            threads.shutdown(wait=True, cancel_futures=True)
        if self._on_close is not None:
            self._on_close()
