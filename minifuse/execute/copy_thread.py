"""The thread in which copies run beside the computing, the most urgent first (Pensieve: retrieval before eviction)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from queue import PriorityQueue
from typing import Any, TypeVar

WAITED, FETCH, STORE = range(3)  # urgency: a plan waits for it; behind everything, to the device; to the host

T = TypeVar("T")


class CopyThread:
    """A thread that makes copies one after the other, always the most urgent one, started when it is first needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "minifuse-copies")
        self._numbers = count()
        self._queue: PriorityQueue[tuple[int, int, int, Callable[[], Any], Future[Any]]] = PriorityQueue()

    def submit(self, urgency: int, work: Callable[[], T], step: int = 0) -> Future[T]:
        """Make a copy when nothing more urgent is to be made, nor anything as urgent of an earlier step.

        Raises:
            RuntimeError: the thread has been closed.
        """
        made: Future[T] = Future()
        self._queue.put((urgency, step, next(self._numbers), work, made))
        self._pool.submit(self._most_urgent)
        return made

    def _most_urgent(self) -> None:
        *_, work, made = self._queue.get()
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
