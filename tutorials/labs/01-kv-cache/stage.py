"""A memory of the engine that asks the student's `missing` what is to be computed."""

from collections.abc import Collection

from minifuse.core.plan import Plan, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.memory.contiguous import Contiguous
from minifuse.stages import register
from minifuse.techniques import mix, technique

__all__ = ["MANY", "ONE", "Cached", "asked"]


def asked(work, length: int, written: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The student's spans: in order, within the text, and none is empty."""
    found = work.call("missing", length, written, form=list[tuple[int, int]])
    reached = 0
    for start, stop in found:
        if not reached <= start < stop <= length:
            raise StudentFault(
                f"missing({length}, {written}) returned {found}: [{start}, {stop}) is empty, leaves [0, {length}), or "
                "is not in order."
            )
        reached = stop
    return [(start, stop) for start, stop in found]


@register
class Cached(OfStudent, Contiguous):
    """A KV cache in one run of slots for each request. What is missing from it is for the student to say."""

    name = "lab-cached"

    def __init__(self, capacity, options=None) -> None:
        super().__init__(capacity, options)
        self.spans: dict[str, list[tuple[int, int]]] = {}  # that were computed, in the order of the iterations

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        found = asked(self.work, len(sequence.tokens), self.spans.get(sequence.id, []))
        return tuple(Span(*span) for span in found)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        usage = super().commit(plan, sampled, now)
        for name, start, stop, _ in plan.work:
            self.spans.setdefault(name, []).append((start, stop))
        return usage

    def release(self, sequence: Sequence, now: float) -> None:
        super().release(sequence, now)
        self.spans.pop(sequence.id, None)


ONE = mix(technique("serial"), memory="lab-cached")  # one request at a time
MANY = mix(technique("orca"), memory="lab-cached")  # several in an iteration
