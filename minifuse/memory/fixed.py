"""What is shared by the memories that take nothing from a sequence before it is released: no eviction (Orca)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container

from minifuse.errors import LawBroken
from minifuse.plan import Proposal, Reason
from minifuse.request import Sequence

__all__ = ["FixedRoom", "check_proposal"]


class FixedRoom(ABC):
    """What is free now. An admitted sequence needs nothing more, and cannot be evicted."""

    @abstractmethod
    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None: ...

    def extend(self, sequence: Sequence) -> Reason | None:
        return None

    def evict(self, sequence: Sequence) -> None:
        raise _evicted(sequence)


def check_proposal(proposal: Proposal, admitted: Container[str]) -> None:
    """Raise `LawBroken` unless it admits new sequences only, works on admitted ones only, and evicts none."""
    for sequence in proposal.evict:
        raise _evicted(sequence)
    newcomers = {newcomer.id for newcomer in proposal.admit}
    for work in proposal.work:
        if work.sequence not in admitted and work.sequence not in newcomers:
            raise LawBroken("conservation", f"work was proposed for {work.sequence}, which was never admitted")
    for newcomer in proposal.admit:
        if newcomer.id in admitted:
            raise LawBroken("conservation", f"{newcomer.id} was admitted a second time")


def _evicted(sequence: Sequence) -> LawBroken:
    return LawBroken("conservation", f"{sequence.id} was to be evicted, and this memory keeps a sequence to its end")
