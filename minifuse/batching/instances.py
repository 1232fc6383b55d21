"""Concurrent model instances: each request is served by a worker of its own (Flover, III; its FasterTransformer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.batching.newcomers import admit_together, prompts_of_first
from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.plan import Proposal, Reason, Room, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.stages import Batching

__all__ = ["Instances"]


class Instances(Batching):
    """A worker for each request: it runs the prompt and every token alone, beside the others, on the same weights.

    The prompts of one request share its instance. A request waits while all instances are taken or its KV does not fit.
    """

    name: ClassVar[str] = "instances"
    overtaken_at_most = 0
    starts_together = True
    work_conserving = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        instances: int = option(32, "requests served at once, at most", minimum=1, maximum=1024, batch_size=True)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting = Ranked()
        self.workers: int = self.options.instances
        self.serving: list[dict[str, Sequence]] = [{} for _ in range(self.workers)]  # the prompts of each instance
        self.instance: dict[str, int] = {}  # which instance serves a prompt
        self.num_idle = self.workers  # instances that serve none

    def receive(self, sequence: Sequence) -> None:
        self.waiting.join(sequence, self.options.rank(sequence.request))

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)
        instance = self.instance.pop(sequence.id, None)
        if instance is not None:
            del self.serving[instance][sequence.id]
            self.num_idle += not self.serving[instance]

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        mine = self.serving[worker]
        admit: tuple[Sequence, ...] = ()
        room = memory.room() if self.waiting else None
        reason = None if room is None else self._why_waiting(room)
        if not mine and self.waiting and reason is None:
            admit = prompts_of_first(self.waiting)
            self.num_idle -= 1
            for sequence in admit:
                self.waiting.remove(sequence.id)
                self.instance[sequence.id] = worker
                mine[sequence.id] = sequence
        work = tuple(Work(s.id, *span) for s in mine.values() for span in memory.missing(s))
        return Proposal(work, admit, (reason,) if reason else (), room=room)

    def _why_waiting(self, room: Room) -> Reason | None:
        """Why the first request that waits cannot have an instance now, or None."""
        prompts = prompts_of_first(self.waiting)
        if not self.num_idle:
            text = f"not admitted: all {self.workers} instances are serving"
            return Reason("batch-full", prompts[0].id, text)
        return admit_together(prompts, room)
