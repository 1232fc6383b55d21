"""Shortest remaining processing time first, told the lengths of answers: an oracle for feedback queues."""

from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.reranking import outranks, rerank_all
from minifuse.core.plan import Proposal
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option


class Srpt(QueuePolicy):
    """Requests with the shortest rest run; one with a shorter takes the place of a running one between two iterations.

    The rest is an iteration for each token of the longest possible answer (`max_new_tokens`), and the prompt as long as
    nothing has been answered. So it is an oracle where answers have the lengths that were asked for (stop tokens
    ignored), and no server can know as much: it tells how far a feedback queue is from knowing the lengths
    (FluidInfer, 2). A long request may starve.

    >>> # prompt_token 0.05: a prompt of 1000 tokens with an answer of 1 has 51 iterations left, one of 1 token with an
    >>> # answer of 500 has 500: the first goes first
    """

    name = "srpt"
    work_conserving = True
    grows = True
    admission = QueuePolicy._batch_full
    displaces = outranks

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)
        prompt_token: float = option(
            0.05, "what a token of a prompt takes, in iterations of single tokens", minimum=0, maximum=1000
        )

    def rank(self, sequence: Sequence) -> float:
        """The iterations that are left: of the answer, and of the prompt, if nothing has been answered."""
        request = sequence.request
        prompt = 0.0 if sequence.num_new else len(request.prompt) * self.options.prompt_token
        return float(request.max_new_tokens - sequence.num_new + prompt)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if self.waiting:
            rerank_all(self.running, self.rank)
        return super().propose(worker, now, memory)
