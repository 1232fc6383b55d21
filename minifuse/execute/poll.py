"""Polls from a thread for plans that a device has computed (BatchMaker, 2.5)."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from concurrent.futures import Future
from typing import Protocol

from minifuse.core.report import Ran

__all__ = ["Pending", "Poller"]

PAUSE_S = 20e-6  # between two polls when nothing was ready


class Pending(Protocol):
    """A plan that has been issued to a device and may not have been computed yet."""

    def ready(self) -> bool:
        """Whether it has been computed. Never blocks."""
        ...

    def ran(self) -> Ran:
        """What it produced, once it is ready."""
        ...


class Poller:
    """Each worker's queue of plans in progress, the heads of which a thread polls until they are ready.

    No other thread waits for the device: the worker's thread goes on issuing, and the engine waits for futures.
    """

    def __init__(self) -> None:
        self._in_progress: defaultdict[int, deque[tuple[Future[Pending], Future[Ran]]]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._poll, name="minifuse-poller", daemon=True)
        self._thread.start()

    def watch(self, worker: int, issued: Future[Pending]) -> Future[Ran]:
        """A future of what a plan produces that `worker` issues, behind all plans that it has issued before."""
        computed: Future[Ran] = Future()
        with self._changed:
            self._in_progress[worker].append((issued, computed))
            self._changed.notify()
        return computed

    def _poll(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or any(self._in_progress.values()))
                heads = [(queue, *queue[0]) for queue in self._in_progress.values() if queue]
            if self._closed:
                return
            settled = [self._settle(*head) for head in heads]  # a list: `any` would stop at the first
            if not any(settled):
                time.sleep(PAUSE_S)

    def _settle(
        self, queue: deque[tuple[Future[Pending], Future[Ran]]], issued: Future[Pending], computed: Future[Ran]
    ) -> bool:
        """Set the future of a queue's head if it has been computed, or has failed. Returns whether it was set."""
        try:
            if not issued.done() or not issued.result().ready():
                return False
            ran = issued.result().ran()
        except BaseException as error:
            queue.popleft()
            computed.set_exception(error)
            return True
        queue.popleft()
        computed.set_result(ran)
        return True

    def close(self) -> None:
        """Stop polling. The futures of plans that have not been computed are never set."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
