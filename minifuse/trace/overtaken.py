"""Counts how many requests overtook the same request."""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import Literal, NamedTuple

from sortedcontainers import SortedList

from minifuse.trace.lives import Life

What = Literal["waits", "waited", "admitted"]


class _Change(NamedTuple):
    """A request begins to wait, waits no more, or is admitted for the first time."""

    at_s: float
    order: int  # changes of waits before admissions of the same time: these do not overtake each other
    number: int
    due: float
    what: What
    life: Life


class Overtaken:
    """Follows a run, and finds the largest number of requests that overtook the same request.

    A request overtakes another if it arrives later, and is first admitted while the other waits. A request waits from
    its arrival until it is admitted, and from each eviction until it is admitted again. Requests that arrive, or are
    admitted, at the same time do not overtake each other.

    Plans on several workers do not complete in the order in which they began. So each change is kept until all plans
    that may have begun before it have been seen: until `settle` is called with at least its `due`.

    >>> a, b, c = (Life(arrival_s=float(i), prompt_tokens=1) for i in range(3))
    >>> overtaken = Overtaken()
    >>> for life, at_s in ((a, 5.0), (b, 3.0), (c, 4.0)):
    ...     overtaken.admitted(life, at_s, due=0)
    >>> overtaken.most([])  # b and c before a
    2
    """

    def __init__(self) -> None:
        self._most = 0
        self._arrivals: SortedList[float] = SortedList()  # of admitted requests
        self._changes: list[_Change] = []  # a heap
        self._numbers = count()

    def admitted(self, life: Life, at_s: float, due: float) -> None:
        """Record an admission: the first one, or one after an eviction."""
        self._push(at_s, 0, due, "waited", life)
        if life.admitted_s == math.inf:
            self._push(at_s, 1, due, "admitted", life)
        life.admitted_s = min(life.admitted_s, at_s)

    def evicted(self, life: Life, at_s: float, due: float) -> None:
        self._push(at_s, 0, due, "waits", life)

    def ended(self, life: Life, due: float) -> None:
        """Record that a request has ended, perhaps while it waited."""
        self._push(life.ended_s, 0, due, "waited", life)

    def _push(self, at_s: float, order: int, due: float, what: What, life: Life) -> None:
        heapq.heappush(self._changes, _Change(at_s, order, next(self._numbers), due, what, life))

    def settle(self, due: float) -> None:
        """Apply the changes that are due, in the order of their times."""
        while self._changes and self._changes[0].due <= due:
            change = heapq.heappop(self._changes)
            life = change.life
            if change.what == "admitted":
                self._arrivals.add(life.arrival_s)
            elif change.what == "waits":
                life.waits_since = self._ahead_of(life)
            elif life.waits_since is not None:
                life.overtaken += self._ahead_of(life) - life.waits_since
                life.waits_since = None
                self._most = max(self._most, life.overtaken)

    def _ahead_of(self, life: Life) -> int:
        """Count the requests that arrived later and were admitted so far."""
        return len(self._arrivals) - int(self._arrivals.bisect_right(life.arrival_s))

    def forget(self, before_s: float) -> None:
        """Forget arrivals up to a time, which no request still to end arrived before."""
        del self._arrivals[: self._arrivals.bisect_right(before_s)]

    def most(self, waiting: list[Life]) -> int:
        """Return the largest number so far, counting requests that wait still."""
        self.settle(math.inf)
        waits = [life for life in waiting if life.arrived and life.waits_since is not None]
        still = [life.overtaken + self._ahead_of(life) - (life.waits_since or 0) for life in waits]
        return max([self._most, *still])
