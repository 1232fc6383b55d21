"""Prompts and single tokens in one iteration, up to a number of tokens (Pensieve, 3.4.2)."""

from dataclasses import dataclass

from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.batching.prefill_first import fill_prompts_first
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Proposal, Reason, Span
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.io.parsing import number


class Unified(QueuePolicy):
    """Admits newcomers in order while the iteration has fewer tokens than a threshold.

    A prompt is never cut, so the last newcomer may exceed the threshold. When memory runs out for running sequences,
    the newest are evicted, and wait again (3.4.3.5). Without `unify`, newcomers make the running sequences wait, and
    their prompts are computed in iterations of their own: the ablation of 3.6.7.
    """

    name = "unified"
    work_conserving = True
    grows = True
    admission = QueuePolicy._batch_full

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)
        max_tokens: int = option(2048, "newcomers join while an iteration has fewer tokens than this", minimum=1)
        unify: bool = option(True, "compute prompts and single tokens in the same iterations")

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if self.options.unify:
            return self._fill(now, memory, self._missing(memory), self._iteration_full)
        return fill_prompts_first(self, now, memory, self._iteration_full)

    def _iteration_full(self, fill: Fill, sequence: Sequence, spans: tuple[Span, ...]) -> Reason | None:
        planned = sum([work.stop - work.start for work in fill.work])
        if planned < self.options.max_tokens:
            return None
        return Reason("iteration-full", sequence.id, f"not admitted: the iteration has {number(planned, 'token')}")
