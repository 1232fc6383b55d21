"""The queue of a batching policy: the order in which requests are considered, and the structure that keeps it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from minifuse.errors import UsageError
from minifuse.options import option
from minifuse.request import Request, Sequence

__all__ = ["QueueOptions", "Ranked", "Ticket"]

LONGEST = 512  # tickets of one run: as many are moved, at most, when one is added or removed
_first = itemgetter(0)


@dataclass(frozen=True)
class QueueOptions:
    """The options that every policy with a queue of requests has."""

    order: str = option(
        "fcfs",
        "first come, first served; or the highest priority first, and those of the same as they came",
        choices=("fcfs", "priority"),
    )
    ageing: float | None = option(
        None, "how long a request waits to gain one level of priority; none: it gains none", minimum=0.001, unit="s"
    )

    def __post_init__(self) -> None:
        if self.ageing is not None and self.order != "priority":
            raise UsageError(
                f"batching.ageing is {self.ageing:g} s and batching.order is {self.order}, under which priorities do "
                "not count: give batching.order=priority, or leave batching.ageing out."
            )

    def rank(self, request: Request) -> float:
        """The lowest goes first; of equal ranks, the first to arrive.

        With ageing, a request's priority at time t is `priority + (t - arrival_s) / ageing`. All that wait gain at the
        same rate, so t never changes which of two is higher: the order is that of `arrival_s - priority * ageing`,
        which is known at arrival, and the queue is never sorted again. A request is overtaken only by those of n more
        levels that arrive within n times `ageing` of it, so that none waits forever.

        >>> QueueOptions(order="priority").rank(Request("a", (1,), priority=3, arrival_s=10.0))
        -3
        >>> QueueOptions(order="priority", ageing=2.0).rank(Request("a", (1,), priority=3, arrival_s=10.0))
        4.0
        """
        if self.order == "fcfs":
            return 0
        if self.ageing is None:
            return -request.priority
        return request.arrival_s - request.priority * self.ageing


class Ticket(NamedTuple):
    """A sequence's place in the order: by rank, then by the number of its arrival."""

    rank: Any  # of one policy's tickets, any two compare
    number: int  # each has another, so that sequences are never compared
    sequence: Sequence


class Ranked:
    """Sequences in the order of their tickets; iterating looks at no more of them than are asked for.

    Adding or removing one costs next to the same however many there are: the tickets lie in sorted runs of bounded
    length, one behind the other, and only one run is changed.
    """

    def __init__(self) -> None:
        self._runs: list[list[Ticket]] = []  # none is empty
        self._tickets: dict[str, Ticket] = {}

    def add(self, ticket: Ticket) -> None:
        """Put a sequence in its place."""
        if not self._runs:
            self._runs.append([ticket])
        else:
            index = max(bisect_right(self._runs, ticket, key=_first) - 1, 0)
            run = self._runs[index]
            insort(run, ticket)
            if len(run) > LONGEST:
                self._runs.insert(index + 1, run[LONGEST // 2 :])
                del run[LONGEST // 2 :]
        self._tickets[ticket.sequence.id] = ticket

    def remove(self, name: str) -> Ticket:
        """Take the sequence of this name out. Raise `KeyError` if it is not here."""
        ticket = self._tickets.pop(name)
        index = bisect_right(self._runs, ticket, key=_first) - 1
        run = self._runs[index]
        del run[bisect_left(run, ticket)]
        if not run:
            del self._runs[index]
        return ticket

    def ticket(self, name: str) -> Ticket:
        """The place of the sequence of this name. Raise `KeyError` if it is not here."""
        return self._tickets[name]

    def discard(self, name: str) -> None:
        """Take the sequence of this name out, if it is here."""
        if name in self._tickets:
            self.remove(name)

    def rerank(self, name: str, rank: Callable[[Sequence], Any]) -> None:
        """Put the sequence of this name where its `rank` now stands. Raise `KeyError` if it is not here."""
        ticket = self.remove(name)
        self.add(ticket._replace(rank=rank(ticket.sequence)))

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences in order. None may be added or removed meanwhile."""
        return (sequence for run in self._runs for _, _, sequence in run)

    def __reversed__(self) -> Iterator[Sequence]:
        """The sequences, the last first. None may be added or removed meanwhile."""
        return (sequence for run in reversed(self._runs) for _, _, sequence in reversed(run))

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, name: str) -> bool:
        return name in self._tickets
