"""Dynamic re-batching: replace a finished query at once, as in a relay race (Baton, 4)."""

from dataclasses import dataclass
from typing import Any

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.batching.reranking import outranks
from minifuse.core.plan import Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.io.parsing import number


@dataclass(frozen=True)
class RefillOptions(QueueOptions):
    """The options of a policy that replaces finished sequences while the batch runs."""

    max_batch: int = option(8, "requests in the batch, at most", minimum=1, batch_size=True)
    preempt: bool = option(
        True,
        "with batching.order=priority and refill: a request takes the place of a running one of lower priority",
    )
    refill: bool = option(True, "replace what has finished at once, or else run the batch to completion")


def batch_closed(policy: QueuePolicy, sequence: Sequence, joining: int, now: float) -> Reason | None:
    """Return why a sequence cannot join (the batch is full or closed), or None."""
    if full := policy._batch_full(sequence, joining):
        return full
    if policy.options.refill or not policy.running:
        return None
    size = number(len(policy.running) + joining, "request")
    return Reason("batch-running", sequence.id, f"not admitted: the batch of {size} still runs")


def takes_place(policy: QueuePolicy, newcomer: Sequence, running: Sequence) -> bool:
    """Return whether a newcomer interrupts a running sequence of lower priority (4.3)."""
    options = policy.options
    return bool(options.preempt and options.refill and outranks(policy, newcomer, running))


class Rebatch(QueuePolicy):
    """Admits a newcomer when a running sequence finishes, or in place of a lower-priority one.

    Without `refill` the batch is run to completion before others get a place.

    A sequence is evicted (the paper's interruption, 4.3) for a newcomer of higher priority, or when memory is short. It
    waits again, with its KV kept if memory has room for it, and goes on when another sequence has finished.
    """

    name = "rebatch"
    in_step = True
    grows = True
    admission = batch_closed
    displaces = takes_place
    Options = RefillOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.work_conserving = self.options.refill  # otherwise the place of a finished sequence stays empty
