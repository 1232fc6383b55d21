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
    error there is raised by `wait`.
    """

    def __init__(self, run: RunPlan, clock: Clock, workers: int = 1) -> None:
        self._run = run
        self._clock = clock
        self._done: list[Completion] = []
        self._pending: set[Future[Completion]] = set()
        self._threads = ThreadPoolExecutor(workers, "minifuse-worker") if workers > 1 else None

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        if self._threads is None:
            self._done.append(self._complete(plan, sequences))
        else:
            self._pending.add(self._threads.submit(self._complete, plan, sequences))

    def _complete(self, plan: Plan, sequences: dict[str, Sequence]) -> Completion:
        tokens = self._run(plan, sequences)
        return Completion(plan, tokens, self._clock.now())

    def wait(self, until: float | None) -> list[Completion]:
        if self._pending:
            timeout = None if until is None else max(0.0, until - self._clock.now())
            ended, self._pending = wait(self._pending, timeout, FIRST_COMPLETED)
            self._done += sorted((future.result() for future in ended), key=lambda c: (c.ended_s, c.plan.step))
        elif not self._done and until is not None:
            self._clock.sleep_until(until)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
