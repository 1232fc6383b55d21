"""Plans run in real time: one worker in the caller's thread, several each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import NamedTuple

from minifuse.clock import Clock
from minifuse.plan import Completion, Plan, Ran
from minifuse.request import Sequence

__all__ = ["RealExecutor", "RunPlan"]

RunPlan = Callable[[Plan, dict[str, Sequence]], Ran]  # computes a plan


class _Ended(NamedTuple):
    plan: Plan
    future: Future[Ran]
    ended_s: float


class RealExecutor:
    """Runs plans with `run` and tells when each ended.

    With one worker, `wait` runs the plan. With more, a plan runs in a thread, made when it is first needed, and an
    error there is raised by `wait`. What ended since `wait` was last called is told as one event, at the time of its
    last; and a time that was to be waited for comes before whatever ended after it, as it would in virtual time.

    Args:
        threads: plans of all workers but the first computed at the same time, at most; the others wait for their turn.
            The first worker, which may be the main stream, never waits. By default all run at once.
        on_close: what else to stop in the end.
    """

    def __init__(
        self,
        run: RunPlan,
        clock: Clock,
        workers: int = 1,
        *,
        threads: int | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self._clock = clock
        self._on_close = on_close
        self._next: tuple[Plan, dict[str, Sequence]] | None = None  # of the one worker
        self._first = ThreadPoolExecutor(1, "minifuse-worker-0") if workers > 1 else None
        self._others = ThreadPoolExecutor(threads or workers, "minifuse-worker") if workers > 1 else None
        self._num_running = 0
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._seen: list[_Ended] = []  # not yet told of
        self._told_s = 0.0  # what has been told of is not older

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        if self._first is None or self._others is None:
            self._next = (plan, sequences)
            return
        self._num_running += 1
        threads = self._first if plan.worker == 0 else self._others
        future = threads.submit(self._run, plan, sequences)
        future.add_done_callback(lambda future: self._ended.put(_Ended(plan, future, self._clock.now())))

    def wait(self, until: float | None) -> list[Completion]:
        if self._num_running:
            return self._threaded(until)
        if self._next is not None:
            (plan, sequences), self._next = self._next, None
            return [Completion(plan, self._run(plan, sequences), self._clock.now())]
        if until is not None:
            self._clock.sleep_until(until)
        return []

    def _threaded(self, until: float | None) -> list[Completion]:
        try:
            if not self._seen:
                timeout = None if until is None else max(0.0, until - self._clock.now())
                self._seen.append(self._ended.get(timeout=timeout))
            while True:
                self._seen.append(self._ended.get_nowait())
        except Empty:
            pass
        due: list[_Ended] = []
        later: list[_Ended] = []
        for ended in self._seen:
            (due if until is None or ended.ended_s <= until else later).append(ended)
        if not due:
            assert until is not None  # otherwise something was waited for
            self._told_s = max(self._told_s, until)
            return []
        self._seen = later
        self._num_running -= len(due)
        self._told_s = max(self._told_s, *(ended.ended_s for ended in due))
        due.sort(key=lambda ended: ended.plan.step)
        return [Completion(plan, future.result(), self._told_s) for plan, future, _ in due]

    def close(self) -> None:
        """Let what runs come to its end; no thread is left, nor what `on_close` stops."""
        for threads in (self._first, self._others):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        if self._on_close is not None:
            self._on_close()
