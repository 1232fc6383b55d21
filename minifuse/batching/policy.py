"""The fill that all policies over one queue share. A policy is an order and an admission rule on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, ClassVar

from minifuse.options import NoOptions
from minifuse.plan import Proposal, Reason, Work
from minifuse.request import Sequence
from minifuse.stages import Memory, Room

__all__ = ["QueuePolicy", "admit_together", "prompts_of_first"]


def prompts_of_first(waiting: Mapping[str, Sequence]) -> tuple[Sequence, ...]:
    """The prompts of the request at the head of a queue, which holds those of one request side by side."""
    queue = iter(waiting.values())
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need; or say why one of them does not fit, and then try no other."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


class QueuePolicy(ABC):
    """Running sequences first, then newcomers in `order` for as long as `admission` and memory let them in.

    The first newcomer that cannot join stops the fill, so nobody is overtaken and waiting is bounded.
    """

    kind: ClassVar[str] = "batching"
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    workers = 1  # one queue, one batch

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting: dict[str, Sequence] = {}  # insertion order is arrival order
        self.running: dict[str, Sequence] = {}

    def receive(self, sequence: Sequence) -> None:
        self.waiting[sequence.id] = sequence

    def release(self, sequence: Sequence) -> None:
        self.waiting.pop(sequence.id, None)
        self.running.pop(sequence.id, None)

    def order(self, waiting: Iterable[Sequence]) -> Iterable[Sequence]:
        """Who is considered first; first come, first served unless overridden."""
        return waiting

    @abstractmethod
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        """Why `sequence` may not join now, or None.

        Args:
            joining: how many newcomers this iteration already has; `self.running` are those from before.
        """

    def wake_at(self, now: float) -> float | None:
        """When to ask again although nothing has arrived or completed."""
        return None

    @property
    def token_budget(self) -> int | None:
        """Tokens of one iteration, at most. A longer span is cut and goes on in the next iteration."""
        return None

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        left = self.token_budget
        work: list[Work] = []
        for sequence in self.running.values():
            left = self._add(work, sequence, memory, left)
        admit: list[Sequence] = []
        reasons: list[Reason] = []
        room = memory.room() if self.waiting else None
        for sequence in self.order(self.waiting.values()):
            reason = self.admission(sequence, len(admit), now)
            if reason is None and left == 0:
                reason = Reason("budget-spent", sequence.id, f"not admitted: {self.token_budget} tokens are planned")
            if reason is None and room is not None:
                reason = room.admit(sequence)
            if reason is not None:
                reasons.append(reason)
                break
            admit.append(sequence)
            left = self._add(work, sequence, memory, left)
        for sequence in admit:
            self.running[sequence.id] = self.waiting.pop(sequence.id)
        return Proposal(tuple(work), tuple(admit), tuple(reasons), None if work else self.wake_at(now))

    def _add(self, work: list[Work], sequence: Sequence, memory: Memory, left: int | None) -> int | None:
        """Append what `sequence` misses, cut to the budget that is left; return what is left then."""
        for start, stop in memory.missing(sequence):
            if left is not None:
                stop = min(stop, start + left)
                left -= stop - start
            if stop > start:
                work.append(Work(sequence.id, start, stop))
        return left
