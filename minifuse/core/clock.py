"""Clocks in seconds since the run began: one real, one virtual."""

from __future__ import annotations

import time


class RealClock:
    """The wall clock. The first reading starts it, at 0."""

    def __init__(self) -> None:
        self._start: float | None = None

    def now(self) -> float:
        now = time.perf_counter()
        if self._start is None:
            self._start = now
        return now - self._start


class VirtualClock:
    """A clock that moves only when it is set forward, however busy the machine is."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep_until(self, when: float) -> None:
        self._now = max(self._now, when)
