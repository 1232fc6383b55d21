"""Dynamic re-batching: a finished query is replaced at once, like the runner in a relay race (Baton, 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.options import option
from minifuse.parsing import number
from minifuse.plan import Reason
from minifuse.request import Sequence
from minifuse.stages import register

__all__ = ["Rebatch"]


@register
class Rebatch(QueuePolicy):
    """A newcomer joins as soon as a running sequence has finished, or at once in the place of one of lower priority.

    Without `refill` the batch is run to completion before others get a place.

    A sequence that is evicted (the paper's interruption, 4.3), by a newcomer of higher priority or because memory is
    short, waits again, with its KV kept where memory has room for it, and goes on when another has finished.
    """

    name = "rebatch"
    in_step: ClassVar[bool] = True
    grows = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(8, "requests in the batch, at most", minimum=1, batch_size=True)
        preempt: bool = option(
            True,
            "with batching.order=priority and refill: a request takes the place of a running one of lower priority",
        )
        refill: bool = option(True, "replace what has finished at once, or else run the batch to completion")

    @property
    def work_conserving(self) -> bool:
        """With `refill`: otherwise what has finished leaves its place empty until the batch has run."""
        refill: bool = self.options.refill
        return refill

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        full = self._batch_full(sequence, joining)
        if full is None and self.running and not self.options.refill:
            size = number(len(self.running) + joining, "request")
            return Reason("batch-running", sequence.id, f"not admitted: the batch of {size} still runs")
        return full

    def displaces(self, newcomer: Sequence, running: Sequence) -> bool:
        options = self.options
        return bool(options.preempt and options.refill and self.rank(newcomer) < self.rank(running))
