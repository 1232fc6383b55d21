"""Plans run in real time: one worker in the caller's thread, several each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from minifuse.clock import Clock
from minifuse.plan import Completion, Plan, Ran
from minifuse.request import Sequence

__all__ = ["RealExecutor", "RunPlan"]

RunPlan = Callable[[Plan, dict[str, Sequence]], Ran]  # computes a plan


class RealExecutor:
    """Runs plans with `run` and tells when each ended.

    With one worker, `wait` runs the plan. With more, a plan runs in a thread, made when it is first needed, and an
    error there is raised by `wait`. There a plan ends when `wait` sees it end, so times never run backwards; and a time
    that was to be waited for comes before whatever ended after it, as it would in virtual time.

    Args:
        threads: plans computed at the same time, at most; the others wait for their turn. By default all.
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
        self._on_close = on_close
        self._clock = clock
        self._next: tuple[Plan, dict[str, Sequence]] | None = None  # of the one worker
        self._threads = ThreadPoolExecutor(threads or workers, "minifuse-worker") if workers > 1 else None
        self._num_running = 0
        self._ended: SimpleQueue[tuple[Plan, Future[Ran]]] = SimpleQueue()
        self._seen: list[tuple[Plan, Future[Ran]]] = []  # ended, and not yet told of

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        if self._threads is None:
            self._next = (plan, sequences)
            return
        self._num_running += 1
        future = self._threads.submit(self._run, plan, sequences)
        future.add_done_callback(lambda future: self._ended.put((plan, future)))

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
                self._seen.append(
                    self._ended.get(timeout=None if until is None else max(0.0, until - self._clock.now()))
                )
            while True:
                self._seen.append(self._ended.get_nowait())
        except Empty:
            pass
        now = self._clock.now()
        if until is not None and now > until:
            return []  # what ended meanwhile is told next time, at its own time
        ended, self._seen = sorted(self._seen, key=lambda pair: pair[0].step), []
        self._num_running -= len(ended)
        return [Completion(plan, future.result(), now) for plan, future in ended]

    def close(self) -> None:
        """Let what runs come to its end; no thread is left, nor what `on_close` stops."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._on_close is not None:
            self._on_close()
