"""Iteration-level scheduling (Orca; Baton, 2.2; FluidInfer, 2)."""

from dataclasses import dataclass
from typing import ClassVar

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.core.stages import option


@dataclass(frozen=True)
class BatchOptions(QueueOptions):  # for policies that limit the requests of an iteration
    max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)
    token_budget: int | None = option(None, "tokens in one iteration, at most", minimum=1)


class Iteration(QueuePolicy):
    """Newcomers join, and finished sequences leave, at every iteration.

    Prompts and single tokens share an iteration. With a token_budget, a long prompt is computed in pieces over several
    iterations, so that it hardly delays the next token of the sequences before it.
    """

    name = "iteration"
    Options: ClassVar[type] = BatchOptions
    work_conserving = True  # claims, as in QueuePolicy
    in_step = True
    admission = QueuePolicy._batch_full
