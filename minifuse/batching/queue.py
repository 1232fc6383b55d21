"""The queue of a batching policy: the order of requests, and who keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from minifuse.core.errors import UsageError
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option

__all__ = ["QueueOptions", "Ranked", "Ticket"]


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
    """Keeps sequences in the order of their tickets: those that wait, or run."""

    def __init__(self) -> None:
        self._order: SortedList[Ticket] = SortedList()
        self._tickets: dict[str, Ticket] = {}
        self.num_joined = 0

    def join(self, sequence: Sequence, rank: Any) -> None:
        """Add a sequence that has arrived, behind all of its rank."""
        self.num_joined += 1
        self.add(Ticket(rank, self.num_joined, sequence))

    def add(self, ticket: Ticket) -> None:
        """Add a sequence in the place that it had, in this queue or in another."""
        self._order.add(ticket)
        self._tickets[ticket.sequence.id] = ticket

    def remove(self, name: str) -> Ticket:
        """Take the sequence of this name out. Raise `KeyError` if it is not here."""
        ticket = self._tickets.pop(name)
        self._order.remove(ticket)
        return ticket

    def ticket(self, name: str) -> Ticket:
        """The place of the sequence of this name. Raise `KeyError` if it is not here."""
        return self._tickets[name]

    def discard(self, name: str) -> None:
        """Take the sequence of this name out, if it is here."""
        if name in self._tickets:
            self.remove(name)

    def rerank_all(self, rank: Callable[[Sequence], Any]) -> None:
        """Put every sequence where its `rank` now stands."""
        tickets = [ticket._replace(rank=rank(ticket.sequence)) for ticket in self._order]
        self._order = SortedList(tickets)
        self._tickets = {ticket.sequence.id: ticket for ticket in tickets}

    def rerank(self, name: str, rank: Callable[[Sequence], Any]) -> None:
        """Move a sequence to where its `rank` now stands. Raise `KeyError` if it is not here."""
        ticket = self.remove(name)
        self.add(ticket._replace(rank=rank(ticket.sequence)))

    @property
    def first(self) -> Sequence | None:
        """The first sequence; None if there is none."""
        return self._order[0].sequence if self._order else None

    @property
    def last(self) -> Sequence | None:
        """The last sequence; None if there is none."""
        return self._order[-1].sequence if self._order else None

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences in order. None may be added or removed meanwhile."""
        return (ticket[2] for ticket in self._order)

    def __reversed__(self) -> Iterator[Sequence]:
        """The sequences, the last first. None may be added or removed meanwhile."""
        return (ticket[2] for ticket in reversed(self._order))

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, name: str) -> bool:
        return name in self._tickets
