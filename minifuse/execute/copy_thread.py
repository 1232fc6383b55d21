"""The thread in which copies run beside the computing, the most urgent first (Pensieve: retrieval before eviction)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock

__all__ = ["FETCH", "STORE", "WAITED", "CopyThread"]

WAITED, FETCH, STORE = range(3)  # urgency: a plan waits for it; behind everything, to the device; to the host


class CopyThread:
    """A thread that makes copies one after the other, always the most urgent one, started when it is first needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "minifuse-copies")
        self._lock = Lock()
        self._numbers = count()
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []  # a heap

    def submit(self, urgency: int, work: Callable[[], None], step: int = 0) -> None:
        """Make a copy when nothing more urgent is to be made, nor anything as urgent of an earlier step.

        Raises:
            RuntimeError: the thread has been closed.
        """
        with self._lock:
            heapq.heappush(self._queue, (urgency, step, next(self._numbers), work))
        self._pool.submit(self._most_urgent)

    def _most_urgent(self) -> None:
        with self._lock:
            work = heapq.heappop(self._queue)[-1]
        work()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
