"""Batch-wise inference: run each batch to completion (Baton, 2.1; "Benchmark" in 5.1)."""

from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import option


def run_to_completion(policy: QueuePolicy, sequence: Sequence, joining: int, now: float) -> Reason | None:
    """Return why a sequence cannot join (a batch runs or is full), or None."""
    if policy.running:
        return Reason("batch-running", sequence.id, f"not admitted: the batch of {len(policy.running)} still runs")
    return policy._batch_full(sequence, joining)


class Static(QueuePolicy):
    """Starts up to max_batch requests together; later arrivals wait for the whole batch.

    Each answer is returned as soon as it is done. What a finished sequence still costs depends on memory and layout:
    the padded ones keep its row in the rectangle and compute it as an idle row.
    """

    name = "static"
    in_step = True
    admission = run_to_completion

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(8, "requests in one batch, at most", minimum=1, batch_size=True)
