"""Shortest remaining processing time first: an oracle that knows the lengths of answers."""

from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.reranking import outranks, rerank_all
from minifuse.core.plan import Proposal
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option


class Srpt(QueuePolicy):
    """Runs the requests with the least work left, and preempts between two iterations.

    The work left is one iteration for each remaining token of the longest possible answer (`max_new_tokens`) and, until
    the first token, the time of the prompt. So the policy is an oracle if every answer has its maximum length (stop
    tokens ignored). No server knows the lengths in advance: the oracle shows what a feedback queue loses by not knowing
    them (FluidInfer, 2). A long request may starve.

    >>> # prompt_token 0.05: a prompt of 1000 tokens with an answer of 1 has 51 iterations left. It goes before a prompt
    >>> # of 1 token with an answer of 500, which has 500
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
        """Return the iterations left for the answer and, before its first token, the prompt."""
        request = sequence.request
        prompt = 0.0 if sequence.num_new else len(request.prompt) * self.options.prompt_token
        return float(request.max_new_tokens - sequence.num_new + prompt)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if self.waiting:
            rerank_all(self.running, self.rank)
        return super().propose(worker, now, memory)
