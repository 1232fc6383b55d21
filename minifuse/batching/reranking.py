"""Queue helpers that few policies need: update ranks, find the first or last sequence."""

from collections.abc import Callable

from sortedcontainers import SortedList

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import Rank, Ranked
from minifuse.core.request import Sequence


def rerank(queue: Ranked, name: str, rank: Callable[[Sequence], Rank]) -> None:
    """Move a sequence to its new rank's place. Raise `KeyError` if it is missing."""
    _, number, sequence = queue.remove(name)
    queue.add((rank(sequence), number, sequence))


def rerank_all(queue: Ranked, rank: Callable[[Sequence], Rank]) -> None:
    """Move every sequence to the place of its new rank."""
    queue.order = SortedList([(rank(sequence), number, sequence) for _, number, sequence in queue.order])
    queue.tickets = {ticket[2].id: ticket for ticket in queue.order}


def outranks(policy: QueuePolicy, newcomer: Sequence, running: Sequence) -> bool:
    """Return whether a newcomer goes before a running sequence, and so displaces it."""
    return bool(policy.rank(newcomer) < policy.rank(running))


def first_of(queue: Ranked) -> Sequence | None:
    """Return the first sequence of a queue, or None."""
    return queue.order[0][2] if queue else None


def last_of(queue: Ranked) -> Sequence | None:
    """Return the last sequence of a queue, or None."""
    return queue.order[-1][2] if queue else None
