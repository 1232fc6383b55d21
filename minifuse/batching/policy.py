"""What batching policies share: the fill of an iteration from one queue, on which a policy is an order and a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from typing import Any, ClassVar

from minifuse.options import NoOptions
from minifuse.plan import Plan, Proposal, Reason
from minifuse.request import Sequence
from minifuse.stages import Memory, Room
from minifuse.work import Work

__all__ = ["QueuePolicy", "Stepwise", "admit_together", "fill", "prompts_of_first"]


def prompts_of_first(waiting: Mapping[str, Sequence]) -> tuple[Sequence, ...]:
    """The prompts of the request at the head of a queue, which holds the prompts of one request side by side."""
    queue = iter(waiting.values())
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need; or return the reason why one of them does not fit."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


def fill(waiting: Iterable[Sequence], room: Room, most: int) -> tuple[list[Sequence], list[Reason]]:
    """The first `most` waiting sequences, as far as memory has room; and the reason why the next is not among them."""
    batch: list[Sequence] = []
    for sequence in waiting:
        if len(batch) == most:
            return batch, [Reason("batch-full", sequence.id, f"not batched: the batch has {most} requests")]
        if full := room.admit(sequence):
            return batch, [full]
        batch.append(sequence)
    return batch, []


class Stepwise:
    """A policy whose workers run one plan at a time, and which needs to know nothing but the state of the sequences."""

    kind: ClassVar[str] = "batching"
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    workers = 1
    depth = 1
    granularity = "cell"

    @property
    def token_budget(self) -> int | None:
        """Tokens of one iteration, at most. A longer span is cut and goes on in the next iteration."""
        return None

    def check(self, model: str, cell_types: Collection[str]) -> None:
        """No option of its own names a type of cell."""

    def commit(self, plan: Plan, now: float) -> None:
        """Nothing to keep: the next proposal starts from the sequences as they are then."""


class QueuePolicy(Stepwise, ABC):
    """Running sequences first, then newcomers in `order` for as long as `admission` and memory let them in.

    The first newcomer that cannot join stops the fill, so no request is overtaken and waiting is bounded. An evicted
    sequence goes back to the head of the queue, and an iteration that evicts admits none: the oldest always runs on.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    grows = False  # admits with no more than is needed now, and evicts the newest when memory runs out

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
        """The order in which waiting sequences are considered; first come, first served unless overridden."""
        return waiting

    @abstractmethod
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        """Why `sequence` may not join now, or None.

        Args:
            joining: how many newcomers this iteration already has; `self.running` does not hold them yet.
        """

    def wake_at(self, now: float) -> float | None:
        """When to ask again although nothing has arrived or completed."""
        return None

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        return self._fill(now, memory)

    def _fill(
        self, now: float, memory: Memory, takes: Callable[[int], bool] | None = None, room: Room | None = None
    ) -> Proposal:
        """Running sequences, then newcomers; of both, those whose number of missing tokens the iteration `takes`."""
        left = self.token_budget
        work: list[Work] = []
        evict: list[Sequence] = []  # the newest first
        if room is None and (self.waiting or self.grows):
            room = memory.room()
        running = list(self.running.values())
        for sequence in self.running.values():
            if sequence in evict or (takes and not takes(_num_missing(sequence, memory))):
                continue
            if self.grows and room is not None:
                self._make_room(sequence, running, room, evict)
            if sequence not in evict:
                left = self._add(work, sequence, memory, left)
        admit: list[Sequence] = []
        reasons = [Reason("evicted", s.id, "evicted: the others have no room for their next token") for s in evict]
        for sequence in () if evict else self.order(self.waiting.values()):
            reason = self.admission(sequence, len(admit), now)
            if reason is None and left == 0:
                reason = Reason("budget-spent", sequence.id, f"not admitted: {self.token_budget} tokens are planned")
            if reason is None and takes and not takes(_num_missing(sequence, memory)):
                text = "not admitted: prompts and single tokens run in iterations of their own"
                reason = Reason("other-phase", sequence.id, text)
            if reason is None and room is not None:
                reason = room.admit(sequence, growing=True) if self.grows else room.admit(sequence)
            if reason is not None:
                reasons.append(reason)
                break
            admit.append(sequence)
            left = self._add(work, sequence, memory, left)
        if not work:
            return Proposal(reasons=tuple(reasons), wake_at=self.wake_at(now))
        for sequence in admit:
            self.running[sequence.id] = self.waiting.pop(sequence.id)
        for sequence in evict:
            self.waiting = {sequence.id: self.running.pop(sequence.id), **self.waiting}
        return Proposal(tuple(work), tuple(admit), tuple(reasons), evict=tuple(evict), growing=self.grows)

    def _make_room(self, sequence: Sequence, running: list[Sequence], room: Room, evict: list[Sequence]) -> None:
        """Evict the newest of those `running`, itself at last, until `sequence` has room for its next token."""
        while sequence not in evict and room.extend(sequence) is not None:
            newest = running.pop()
            room.evict(newest)
            evict.append(newest)

    def _add(self, work: list[Work], sequence: Sequence, memory: Memory, left: int | None) -> int | None:
        """Append what `sequence` misses, cut to the budget that is left; return what is left then."""
        for start, stop in memory.missing(sequence):
            if left is not None:
                stop = min(stop, start + left)
                left -= stop - start
            if stop > start:
                work.append(Work(sequence.id, start, stop))
        return left


def _num_missing(sequence: Sequence, memory: Memory) -> int:
    return sum(stop - start for start, stop in memory.missing(sequence))
