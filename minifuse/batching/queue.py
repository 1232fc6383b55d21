"""The queue of a batching policy: sequences in the order of rank, then of arrival."""

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList

from minifuse.core.errors import UsageError
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option

Rank = float | tuple[float, ...]
Ticket = tuple[Rank, int, Sequence]  # numbers are unique, so that sequences are never compared


@dataclass(frozen=True)
class QueueOptions:  # for every policy with a queue of requests
    order: str = option("fcfs", "first come, first served, or the highest priority first", choices=("fcfs", "priority"))
    ageing: float | None = option(None, "how long a request waits to gain a level of priority", minimum=0.001, unit="s")

    def __post_init__(self) -> None:
        if self.ageing is not None and self.order != "priority":
            raise UsageError(f"batching.ageing is {self.ageing:g} s: give batching.order=priority, not {self.order}.")

    def rank(self, request: Request) -> float:
        """Return a request's rank: the lowest goes first. All age equally, so ranks never change."""
        if self.order == "fcfs":
            return 0
        return -request.priority if self.ageing is None else request.arrival_s - request.priority * self.ageing


class Ranked:
    """A queue of sequences, in the order of their tickets."""

    def __init__(self) -> None:
        self.order: SortedList[Ticket] = SortedList()
        self.tickets: dict[str, Ticket] = {}
        self.num_joined = 0

    def join(self, sequence: Sequence, rank: Rank) -> None:
        """Add a newly arrived sequence, behind all others of its rank."""
        self.num_joined += 1
        self.add((rank, self.num_joined, sequence))

    def add(self, ticket: Ticket) -> None:
        """Add a ticket taken from some queue: its sequence keeps its place in the order."""
        self.order.add(ticket)
        self.tickets[ticket[2].id] = ticket

    def remove(self, name: str) -> Ticket:
        """Take out the sequence of this name. Raise `KeyError` if it is not here."""
        ticket = self.tickets.pop(name)
        self.order.remove(ticket)
        return ticket

    def discard(self, name: str) -> None:
        """Take out the sequence of this name, if it is here."""
        if name in self.tickets:
            self.remove(name)

    def __iter__(self) -> Iterator[Sequence]:
        return (ticket[2] for ticket in self.order)

    def __len__(self) -> int:
        return len(self.tickets)

    def __contains__(self, name: str) -> bool:
        return name in self.tickets
