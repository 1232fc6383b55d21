"""Plans run in real time: one worker in the caller's thread, several each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from minifuse.clock import Clock
from minifuse.plan import Completion, Plan
from minifuse.request import Sequence

__all__ = ["RealExecutor", "RunPlan"]

RunPlan = Callable[[Plan, dict[str, Sequence]], dict[str, int]]  # computes a plan; the sampled token of each sequence


class RealExecutor:
    """Runs plans with `run` and tells when each ended.

    With one worker, `submit` returns when the plan has run. With more, a plan runs in its worker's thread, and an
    error there is raised by `wait`. There a plan ends when `wait` sees it end, so times never run backwards.
    """

    def __init__(self, run: RunPlan, clock: Clock, workers: int = 1) -> None:
        self._run = run
        self._clock = clock
        self._done: list[Completion] = []
        self._pending: dict[Future[dict[str, int]], Plan] = {}
        self._threads = ThreadPoolExecutor(workers, "minifuse-worker") if workers > 1 else None

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        if self._threads is None:
            self._done.append(Completion(plan, self._run(plan, sequences), self._clock.now()))
        else:
            self._pending[self._threads.submit(self._run, plan, sequences)] = plan

    def wait(self, until: float | None) -> list[Completion]:
        if self._pending:
            timeout = None if until is None else max(0.0, until - self._clock.now())
            ended, _ = wait(self._pending, timeout, FIRST_COMPLETED)
            now = self._clock.now()
            plans = sorted(((self._pending.pop(future), future) for future in ended), key=lambda pair: pair[0].step)
            self._done += [Completion(plan, future.result(), now) for plan, future in plans]
        elif not self._done and until is not None:
            self._clock.sleep_until(until)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
