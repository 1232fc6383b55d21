"""Concurrent model instances: each request is served by a worker of its own (Flover, III; its FasterTransformer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.batching.policy import Stepwise, admit_together, prompts_of_first
from minifuse.options import option
from minifuse.plan import Proposal, Reason
from minifuse.request import Sequence
from minifuse.stages import Memory, register
from minifuse.work import Work

__all__ = ["Instances"]


@register
class Instances(Stepwise):
    """A worker for each request: it runs the prompt and every token alone, beside the others, on the same weights.

    The prompts of one request share its instance. First come, first served: a request waits while all instances are
    taken or its KV does not fit.
    """

    name: ClassVar[str] = "instances"

    @dataclass(frozen=True)
    class Options:
        instances: int = option(32, "requests served at once, at most", minimum=1, maximum=1024, batch_size=True)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.workers: int = self.options.instances
        self.waiting: dict[str, Sequence] = {}  # insertion order is arrival order
        self.serving: list[dict[str, Sequence]] = [{} for _ in range(self.workers)]  # the prompts of each instance

    def receive(self, sequence: Sequence) -> None:
        self.waiting[sequence.id] = sequence

    def release(self, sequence: Sequence) -> None:
        for held in (self.waiting, *self.serving):
            held.pop(sequence.id, None)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        mine = self.serving[worker]
        admit: tuple[Sequence, ...] = ()
        reason = self._why_waiting(memory)
        if not mine and self.waiting and reason is None:
            admit = prompts_of_first(self.waiting)
            for sequence in admit:
                mine[sequence.id] = self.waiting.pop(sequence.id)
        work = tuple(Work(s.id, *span) for s in mine.values() for span in memory.missing(s))
        return Proposal(work, admit, (reason,) if reason else ())

    def _why_waiting(self, memory: Memory) -> Reason | None:
        """Why the first request in the queue cannot have an instance now, or None."""
        if not self.waiting:
            return None
        prompts = prompts_of_first(self.waiting)
        if all(self.serving):
            text = f"not admitted: all {self.workers} instances are serving"
            return Reason("batch-full", prompts[0].id, text)
        return admit_together(prompts, memory.room())
