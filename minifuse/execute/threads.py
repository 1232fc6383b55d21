"""A pool of threads that can be closed and used again: an engine may serve once more after it has served."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

__all__ = ["Threads"]

T = TypeVar("T")


class Threads:
    """Up to `size` threads, each started when it is first needed; after `close`, when it is needed again."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do the work in one of the threads, behind all that was submitted before.

        Raises:
            RuntimeError: they are being closed.
        """
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._size, self._name)
            return self._pool.submit(work, *arguments)

    def close(self) -> None:
        """Wait for what the threads are doing, take back what has not begun, and stop them."""
        pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)  # what its threads submit meanwhile is refused
            self._pool = None
