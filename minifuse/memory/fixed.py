"""What is shared by the memories that take nothing from a sequence before it is released: no eviction (Orca)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container

from minifuse.errors import LawBroken
from minifuse.memory.allocator import RunAllocator
from minifuse.plan import Proposal, Reason
from minifuse.request import Sequence

__all__ = ["FixedRoom", "RunRoom", "check_proposal"]


class FixedRoom(ABC):
    """What is free now. An admitted sequence needs nothing more, and cannot be evicted."""

    @abstractmethod
    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None: ...

    def extend(self, sequence: Sequence) -> Reason | None:
        return None

    def evict(self, sequence: Sequence) -> None:
        raise _evicted(sequence)


class RunRoom(FixedRoom):
    """Tries to find a run of slots for the longest possible answer of each newcomer.

    Args:
        where: which slots these are, if not all: "on the host".
        unit: runs are of so many slots, or a multiple.
    """

    def __init__(self, allocator: RunAllocator, where: str = "", unit: int = 1) -> None:
        self.allocator = allocator
        self.where, self.unit = where, unit
        self.trial: RunAllocator | None = None  # a copy of the allocator, made when something is tried

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        needed = -(-sequence.request.max_cached // self.unit) * self.unit
        trial = self.trial = self.trial or self.allocator.copy()
        if trial.allocate(needed) is None:
            where = f" {self.where}" if self.where else ""
            text = f"not admitted: needs {needed} KV tokens in a row{where}, the longest free run has {trial.longest}"
            return Reason("memory-full", sequence.id, text)
        return None


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
