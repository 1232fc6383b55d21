"""Shortest remaining processing time first, told the lengths of answers: the bound on what a queue can do."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.options import option
from minifuse.parsing import number
from minifuse.plan import Proposal, Reason
from minifuse.request import Sequence
from minifuse.stages import Memory, register

__all__ = ["Srpt"]


@register
class Srpt(QueuePolicy):
    """Requests with the fewest tokens left run; one with fewer takes the place of a running one between two iterations.

    What is left is the rest of the prompt, and of the longest possible answer (`max_new_tokens`). So it is an oracle
    where answers have the lengths that were asked for (stop tokens ignored), and no server can know as much: it bounds
    what a feedback queue may reach (FluidInfer, 2). A long request may starve.
    """

    name = "srpt"
    grows = True

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def rank(self, sequence: Sequence) -> int:
        """Tokens that are left, of the prompt, if nothing has been answered, and of the answer."""
        request = sequence.request
        return request.max_new_tokens - sequence.num_new + (0 if sequence.num_new else len(request.prompt))

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if self.waiting:
            for sequence in list(self.running):
                ticket = self.running.remove(sequence.id)
                self.running.add(ticket._replace(rank=self.rank(sequence)))
        return super().propose(worker, now, memory)

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        size = len(self.running) + joining
        if size >= self.options.max_batch:
            return Reason("batch-full", sequence.id, f"not admitted: the batch has {number(size, 'request')}")
        return None

    def displaces(self, newcomer: Sequence, running: Sequence) -> bool:
        return self.rank(newcomer) < self.rank(running)
