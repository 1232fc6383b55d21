"""Limits iterations by the tokens that saturate the machine, not by requests (FluidInfer, 4.1)."""

from dataclasses import dataclass, replace

from minifuse.batching.policy import Missing, QueuePolicy
from minifuse.batching.prefill_first import num_missing
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option

ASSUMED = 512  # tokens; the paper's figure for OPT-6.7B on four RTX 4090


class Fluid(QueuePolicy):
    """Runs every request that memory has room for; prompts share a token budget.

    The layers before and after attention process all tokens of an iteration at once. They gain from every further token
    until they are compute-bound; beyond that, an iteration only takes longer. So the number of requests is not limited:
    each that decodes has a token in every iteration. Beside them, prompts are computed in pieces, within the budget.
    """

    name = "fluid"
    work_conserving = True
    cuts = True
    grows = True  # nothing is evicted if memory has room for every answer at admission
    budget_of_prompts = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        token_budget: int | None = option(
            None,
            "tokens of prompts in one iteration, at most; none: as many as saturate the machine, if that is known, or "
            f"{ASSUMED}",
            minimum=1,
            offered=True,
        )

    @property
    def token_budget(self) -> int:
        return ASSUMED if self.options.token_budget is None else self.options.token_budget

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        """Fill an iteration; put work beyond the device last.

        The rest is then attended in one wave.
        """
        proposal = super().propose(worker, now, memory)
        if not (beyond := getattr(proposal.room, "beyond", ())):
            return proposal
        return replace(proposal, work=tuple(sorted(proposal.work, key=lambda item: item.sequence in beyond)))

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return None

    def _missing(self, memory: Memory) -> Missing:
        missing = super()._missing(memory)
        return sorted(missing, key=lambda pair: num_missing(pair[1]) > 1)  # stable: both parts stay in rank order
