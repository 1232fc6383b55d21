"""A trial of changes to memory: a policy tries them out, and memory commits them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TypeVar

from minifuse.core.errors import LawBroken, WrongReturn
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence

T = TypeVar("T", bound="Trial")


class Trial(ABC):
    """Counts what is free and records what newcomers get, but leaves memory unchanged."""

    beyond: Collection[str] = ()  # sequences that are attended elsewhere than on the device

    def __init__(self) -> None:
        self.settled: list[Sequence] = []  # evicted sequences, then admitted ones, each in order

    @abstractmethod
    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        """Set aside what a newcomer needs, or change nothing and return the reason."""

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if (reason := checked(self, "take", self.take(sequence, growing), sequence)) is None:
            self.settled.append(sequence)
        return reason

    def extend(self, sequence: Sequence) -> Reason | None:
        return None  # an admitted sequence has room for its longest answer, unless a subclass says otherwise

    def evict(self, sequence: Sequence) -> None:
        raise LawBroken("conservation", f"{sequence.id} was to be evicted, and this memory cannot: see Memory.evicts")


def checked(stage: object, method: str, reason: Reason | None, sequence: Sequence) -> Reason | None:
    """Return `reason`. Raise `WrongReturn` unless `reason` is None or a `Reason` for this sequence."""
    if reason is None or (isinstance(reason, Reason) and reason.sequence == sequence.id):
        return reason
    raise WrongReturn(stage, method, reason, f"give Reason(code, {sequence.id!r}, text), or None if there is none")


def settle(proposal: Proposal, kind: type[T], open_trial: Callable[[], T]) -> T:
    """Return a trial that has made the proposal's changes, for memory to commit.

    This is `proposal.room` if that made exactly these changes. A new trial raises `LawBroken` if they do not fit.
    """
    if isinstance(room := proposal.room, kind) and room.settled == [*proposal.evict, *proposal.admit]:
        return room
    trial = open_trial()
    for sequence in proposal.evict:
        trial.evict(sequence)
    for sequence in proposal.admit:
        if full := trial.admit(sequence, growing=proposal.growing):
            raise LawBroken("budget", f"the proposal does not fit: {full}")
    return trial
