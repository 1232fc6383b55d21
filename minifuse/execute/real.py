"""Runs plans in real time: one worker in the caller's thread, several in a thread each (Flover, V; BatchMaker, 2.5)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.report import Completion, Ran
from minifuse.core.request import Sequence
from minifuse.core.stages import Clock, RunPlan
from minifuse.execute.poll import Pending, Poller

__all__ = ["RealExecutor"]

LONGEST_WAIT_S = 3600.0  # at once; a longer wait is one after the other: there is a limit to what a queue can be asked


class _Ended(NamedTuple):
    plan: Plan
    future: Future[Ran]
    ended_s: float


class RealExecutor:
    """Runs plans with `run`, and reports when each ended.

    With one worker, `wait` runs its plans, one at a time. With more, a plan runs in a thread, made when it is first
    needed, and an error there is raised by `wait`. All plans that ended since the last call of `wait` are one event, at
    the time of the last of them. If `wait` has a time limit, plans that ended after it belong to the next event, as in
    virtual time.

    If `issue` is given, each worker's plans are issued with it instead, in order, without waiting for any to be
    computed: a thread polls for that (BatchMaker, 2.5).

    Args:
        threads: plans of all workers but the first that are computed at the same time, at most; further plans wait. The
            first worker, which may be the main stream, never waits. By default all run at once.
        depth: plans that a worker may have in flight; with more than one, each worker has a thread of its own.
        on_close: stops what else belongs to the run.
        behind: begins with the moves of a plan without work, beside all plans; the future is done when they have
            landed. Without it, such a plan is run like any other.
    """

    def __init__(
        self,
        run: RunPlan,
        clock: Clock,
        workers: int = 1,
        *,
        threads: int | None = None,
        depth: int = 1,
        issue: Callable[[Plan, dict[str, Sequence]], Pending] | None = None,
        on_close: Callable[[], None] | None = None,
        behind: Callable[[Plan], Future[Ran]] | None = None,
    ) -> None:
        self._run = run
        self._behind = behind
        self._clock = clock
        self._on_close = on_close
        self._next: deque[tuple[Plan, dict[str, Sequence]]] = deque()  # plans of a single worker
        self._issue = issue
        self._poller = Poller() if issue else None
        self._threads: list[ThreadPoolExecutor] = []  # of the first worker, then of the rest
        if workers > 1 or issue:
            shares = [1] * workers if depth > 1 or issue else [1, threads or workers]
            self._threads = [ThreadPoolExecutor(share, f"minifuse-worker-{i}") for i, share in enumerate(shares)]
        self._num_running = 0
        self._ended: SimpleQueue[_Ended | None] = SimpleQueue()  # None: a wait is to end early
        self._woken = False  # there is a None in it
        self._unreported: list[_Ended] = []
        self._reported_s = 0.0  # the time of the last event: later events are not before it

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        beside = self._behind is not None and not plan.work
        if not self._threads and not beside:
            self._next.append((plan, sequences))
            return
        self._num_running += 1

        def ended(future: Future[Ran]) -> None:
            self._ended.put(_Ended(plan, future, self._clock.now()))

        if self._behind is not None and beside:
            self._behind(plan).add_done_callback(ended)
            return
        threads = self._threads[min(plan.worker, len(self._threads) - 1)]
        if self._issue is None or self._poller is None:
            threads.submit(self._run, plan, sequences).add_done_callback(ended)
        else:
            computed = self._poller.watch(plan.worker, threads.submit(self._issue, plan, sequences))
            computed.add_done_callback(ended)

    def wait(self, until: float | None) -> list[Completion]:
        if self._next:
            plan, sequences = self._next.popleft()
            ran = self._run(plan, sequences)
            if not self._num_running:
                return [Completion(plan, ran, self._clock.now())]
            self._num_running += 1  # what has landed meanwhile is one event with its end
            future: Future[Ran] = Future()
            future.set_result(ran)
            self._ended.put(_Ended(plan, future, self._clock.now()))
            until = None
        woken = False
        while not (self._unreported or woken) and (until is None or self._clock.now() < until):
            woken = self._note(None if until is None else max(0.0, until - self._clock.now()))
        while not self._ended.empty():
            woken |= self._note(0.0)
        due: list[_Ended] = []
        later: list[_Ended] = []
        for ended in self._unreported:
            (due if until is None or ended.ended_s <= until else later).append(ended)
        if not due:
            now = self._clock.now()
            self._reported_s = max(self._reported_s, now if until is None else min(until, now) if woken else until)
            return []
        self._unreported = later
        self._num_running -= len(due)
        # A plan may have ended before the last event, and been noted after it: it is an event of its own, and a replay
        # must not take the two for one.
        later_s = math.nextafter(self._reported_s, math.inf)
        self._reported_s = max(later_s, *(ended.ended_s for ended in due))
        due.sort(key=lambda ended: ended.plan.step)
        return [Completion(plan, future.result(), self._reported_s) for plan, future, _ in due]

    def _note(self, timeout: float | None) -> bool:
        """Note the next plan that has ended, if one does in time. Returns whether the wait is to end early instead."""
        try:
            ended = self._ended.get(timeout=None if timeout is None else min(timeout, LONGEST_WAIT_S))
        except Empty:
            return False
        if ended is not None:
            self._unreported.append(ended)
        else:
            self._woken = False
        return ended is None

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._ended.put(None)

    def close(self) -> None:
        """Wait for the plans that run, then stop all threads, and call `on_close`."""
        for threads in self._threads:
            threads.shutdown(wait=True, cancel_futures=True)
        if self._poller is not None:
            self._poller.close()
        if self._on_close is not None:
            self._on_close()
