"""No KV cache, as a baseline: every iteration computes the whole text."""

from collections.abc import Collection
from typing import Any

from minifuse.core.plan import Plan, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.memory.contiguous import Contiguous


class Recompute(Contiguous):
    """Drops KV once a token is sampled: the next iteration recomputes the text."""

    name = "recompute"

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.spent: set[str] = set()  # sequences whose KV counts as dropped, since a token was sampled from it

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        if sequence.request.id in self.spent:
            return (Span(0, len(sequence.tokens)),)
        return super().missing(sequence)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        usage = super().commit(plan, sampled, now)
        self.spent.difference_update([work.sequence for work in plan.work])
        self.spent.update(sampled)
        return usage

    def release(self, sequence: Sequence, now: float) -> None:
        super().release(sequence, now)
        self.spent.discard(sequence.id)
