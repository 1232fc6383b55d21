"""A trial of memory's books: what a policy settles in it is what is placed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import is_
from typing import ClassVar, TypeVar

from minifuse.contracts.values import check_reason
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence
from minifuse.fault import returned_by
from minifuse.parsing import number

__all__ = ["BlockTrial", "Trial", "settle"]


class Trial(ABC):
    """Counts what is free, and notes what each admitted sequence gets.

    The books stay as they are, and a refusal changes nothing. A memory has one subclass, with the one formula of an
    admission, `take`. Which slots a sequence gets is decided when the trial is committed, in `place`.
    """

    def __init__(self) -> None:
        self.settled: list[Sequence] = []  # evicted and admitted, in the order in which they were

    @abstractmethod
    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        """Set aside what a newcomer needs, or return the reason of a refusal."""

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        reason = self.take(sequence, growing)
        if reason is None:
            self.settled.append(sequence)
        else:
            with returned_by(self, "take"):
                check_reason("", reason, (sequence.id,))
        return reason

    def extend(self, sequence: Sequence) -> Reason | None:
        """Admitted sequences have room for their longest answers, unless a subclass says otherwise."""
        return None

    def evict(self, sequence: Sequence) -> None:
        what = f"{sequence.id} was to be evicted, and this memory keeps a sequence to its end: see Memory.evicts"
        raise LawBroken("conservation", what)

    def settles(self, proposal: Proposal) -> bool:
        """Whether this trial has evicted, then admitted, what a proposal does, in its order."""
        proposed = (*proposal.evict, *proposal.admit)
        return len(proposed) == len(self.settled) and all(map(is_, proposed, self.settled))


class BlockTrial(Trial):
    """Counts free blocks, and the blocks that each sequence has and is promised."""

    unit: ClassVar[str]  # what a block is called

    def __init__(self, free: int, size: int) -> None:
        super().__init__()
        self.free = free
        self.size = size  # tokens in a block
        self.whole: dict[str, int] = {}  # sequence -> blocks that it has and is promised, if that has changed

    @abstractmethod
    def held(self, name: str) -> int:
        """Blocks that a sequence on the device has and is promised."""

    def whole_of(self, name: str) -> int:
        """The same in this trial, of a newcomer too."""
        whole = self.whole.get(name)
        return self.held(name) if whole is None else whole

    def extend_to(self, name: str, length: int) -> Reason | None:
        """As `extend`, for a sequence that is to hold so many tokens."""
        whole = self.whole_of(name)
        needed = -(-length // self.size) - whole
        if needed > self.free:
            text = f"has no room for its next token: needs {number(needed, self.unit)}, {self.free} are free"
            return Reason("memory-full", name, text)
        if needed > 0:
            self.free -= needed
            self.whole[name] = whole + needed
        return None


T = TypeVar("T", bound=Trial)


def settle(proposal: Proposal, kind: type[T], open_trial: Callable[[], T]) -> T:
    """The trial that settles a proposal; one that was not tried is tried now.

    Raises:
        LawBroken: it does not fit.
    """
    if isinstance(proposal.room, kind) and proposal.room.settles(proposal):
        return proposal.room
    trial = open_trial()
    for sequence in proposal.evict:
        trial.evict(sequence)
    for sequence in proposal.admit:
        if full := trial.admit(sequence, growing=proposal.growing):
            raise LawBroken("budget", f"the proposal does not fit: {full}")
    return trial
