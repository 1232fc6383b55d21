"""Which sequences wait and which run, in which order they should, kept from what a policy is told and proposes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minifuse.errors import LawBroken
from minifuse.plan import Proposal
from minifuse.request import Sequence
from minifuse.techniques import Technique

__all__ = ["WaitingBooks"]

ROUNDING = 1e-9  # levels of priority: two requests that come closer, by ageing, may go in either order


class WaitingBooks:
    """Law "queue", for policies with the option `batching.order`: no request is overtaken, whatever the reason.

    A sequence is admitted only with or after all that precede it in the order. Of those that run, the first in the
    order is never evicted. The order is computed here from requests and the time alone: the level of a request is its
    priority and what its waiting adds to it.
    """

    def __init__(self, row: Technique, settings: Mapping[str, Any]) -> None:
        options = {**row.options, **settings}
        self.ordered = "batching.order" in row.option_names
        self.by_priority = options.get("batching.order") == "priority"
        self.ageing: float | None = options.get("batching.ageing")
        self.arrived: list[str] = []  # every sequence that was ever received
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}

    def receive(self, sequence: Sequence) -> None:
        """The policy has received a sequence."""
        self.arrived.append(sequence.id)
        self.waiting[sequence.id] = sequence

    def release(self, sequence: Sequence) -> None:
        """The policy has been told that a sequence has ended."""
        for held in (self.waiting, self.running):
            held.pop(sequence.id, None)

    def propose(self, proposal: Proposal, now: float) -> None:
        """The policy proposes this. Raise `LawBroken` if a sequence is overtaken, or the first of all is evicted."""
        if not proposal.work:
            return
        for evicted in proposal.evict if self.ordered else ():
            if all(other is evicted or self._precedes(evicted, other, now) for other in self.running.values()):
                raise LawBroken("queue", f"{evicted.id} was evicted, and it precedes all others that run")
        for evicted in proposal.evict:
            self.waiting[evicted.id] = self.running.pop(evicted.id, evicted)
        for newcomer in proposal.admit:
            self.running[newcomer.id] = self.waiting.pop(newcomer.id, newcomer)
        for newcomer in proposal.admit if self.ordered else ():
            for other in self.waiting.values():
                if self._precedes(other, newcomer, now):
                    raise LawBroken("queue", f"{newcomer.id} was admitted at {now}, and {other.id} precedes it")

    def _precedes(self, one: Sequence, two: Sequence, now: float) -> bool:
        """Whether one comes before two at this time: it has the higher level, or arrived first with the same."""
        if self.by_priority and one.request.priority != two.request.priority:
            difference = self._level(one, now) - self._level(two, now)
            return difference > (0 if self.ageing is None else ROUNDING)
        return self.arrived.index(one.id) < self.arrived.index(two.id)

    def _level(self, sequence: Sequence, now: float) -> float:
        request = sequence.request
        return request.priority + (0 if self.ageing is None else (now - request.arrival_s) / self.ageing)
