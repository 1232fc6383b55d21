"""Concurrent model instances: each request has its own worker (FasterTransformer, in Flover, III)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Plan, Proposal, Reason, Room, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option


def prompts_of_first(waiting: Iterable[Sequence]) -> tuple[Sequence, ...]:
    """Return the prompts of the first request in a queue, where they are adjacent."""
    queue = iter(waiting)
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need, or return why not."""
    return next(filter(None, map(room.admit, prompts)), None)


class Instances(QueuePolicy):
    """Serves each request on a worker of its own; all workers share the weights.

    The prompts of one request share its instance. A request waits while all instances are taken or its KV does not fit.
    """

    name = "instances"
    one_plan = False
    starts_together = True
    work_conserving = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        instances: int = option(32, "requests served at once, at most", minimum=1, maximum=1024, batch_size=True)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.workers = self.options.instances
        self.serving: list[dict[str, Sequence]] = [{} for _ in range(self.workers)]  # instance -> its prompts
        self.instance: dict[str, int] = {}  # prompt that is served -> its instance
        self.idle = set(range(self.workers))  # instances without a request or a plan
        self.in_flight = set[int]()  # instances with a plan

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        if (worker := self.instance.pop(sequence.id, None)) is not None:
            del self.serving[worker][sequence.id]
            self._leave(worker)

    def commit(self, plan: Plan, now: float) -> None:
        self.in_flight.discard(plan.worker)
        self._leave(plan.worker)

    def _leave(self, worker: int) -> None:
        """Mark an instance as idle if it has neither a request nor a plan."""
        if not self.serving[worker] and worker not in self.in_flight:
            self.idle.add(worker)

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if not self.idle:
            return Reason("batch-full", sequence.id, f"not admitted: all {self.workers} instances are serving")
        return None

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        mine, room, reason = self.serving[worker], None, None
        admit: tuple[Sequence, ...] = ()
        if self.waiting:
            prompts = prompts_of_first(self.waiting)
            if (reason := self.admission(prompts[0], 0, now)) is None:
                room = memory.room()
                reason = admit_together(prompts, room)
            admit = prompts if not mine and reason is None else ()
        for sequence in admit:
            self.waiting.remove(sequence.id)
            mine[sequence.id] = sequence
            self.instance[sequence.id] = worker
            self.idle.discard(worker)
        work = tuple([Work(name, *span) for name, one in mine.items() for span in memory.missing(one)])
        if work:
            self.in_flight.add(worker)
        return Proposal(work, admit, (reason,) if reason else (), room=room)
