"""Shortest remaining processing time first, told the lengths of answers: the bound on what a queue can do."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.options import option
from minifuse.parsing import number
from minifuse.plan import Plan, Proposal, Reason
from minifuse.request import Sequence
from minifuse.stages import Memory, register

__all__ = ["Srpt"]


@register
class Srpt(QueuePolicy):
    """Requests with the shortest rest run; one with a shorter takes the place of a running one between two iterations.

    The rest is an iteration for each token of the longest possible answer (`max_new_tokens`), and its prompt as long as
    nothing has been answered, at the speed of the last iterations without and with a prompt. So it is an oracle where
    answers have the lengths that were asked for (stop tokens ignored), and no server can know as much: it tells how far
    a feedback queue is from knowing the lengths (FluidInfer, 2). A long request may starve.

    >>> # 20 ms an iteration, 1 ms a token of a prompt: a prompt of 1000 tokens with an answer of 1 has 1.0 s left, one
    >>> # of 1 token with an answer of 500 has 10 s: the first goes first
    """

    name = "srpt"
    grows = True

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        self.seconds_per_iteration = 1.0  # in the last without a prompt
        self.seconds_per_token = 0.0  # in the last with a prompt
        self.proposed_s = 0.0  # when the iteration that runs was proposed

    def rank(self, sequence: Sequence) -> float:
        """The seconds that are left: of the answer, and of the prompt, if nothing has been answered."""
        request = sequence.request
        answer_s = (request.max_new_tokens - sequence.num_new) * self.seconds_per_iteration
        return answer_s + (0.0 if sequence.num_new else len(request.prompt) * self.seconds_per_token)

    def commit(self, plan: Plan, now: float) -> None:
        took_s = now - self.proposed_s
        if any(work.num_tokens > 1 for work in plan.work):
            self.seconds_per_token = took_s / plan.num_tokens
        elif took_s > 0:
            self.seconds_per_iteration = took_s

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        self.proposed_s = now
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
