"""What goes wrong in the queue: where many wait, in the prompts of a request, and in how full the batch is."""

from __future__ import annotations

from typing import Any

from conformance.defects.harness import Patch, defect, instead_of, unseen_by_queue

from minifuse.batching.growing import GrowingFill
from minifuse.batching.instances import Instances
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.prefill_first import PrefillFirst
from minifuse.batching.reranking import rerank
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence


@defect("orca", "queue", check="under_load", batching__order="fcfs")
@instead_of(QueuePolicy, "_fill")
def the_newest_first_once_many_wait(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    if len(self.waiting) > 12:
        for sequence in list(self.waiting):
            rerank(self.waiting, sequence.id, lambda one: -one.request.arrival_s)
    return fill(self, *arguments)


@defect("vllm", "overtaking", check="under_load", batching__order="fcfs")
def the_newest_first_once_many_wait_and_no_order(patch: Patch) -> None:
    """As of a policy without the option, which claims that none is overtaken."""
    unseen_by_queue(patch)
    the_newest_first_once_many_wait(patch)


@defect("orca", "overtaking", batching__order="fcfs")
def the_prompts_of_a_request_reversed(patch: Patch) -> None:
    unseen_by_queue(patch)
    patch.setattr(
        QueuePolicy,
        "rank",
        lambda self, sequence: (
            sequence.request.arrival_s,
            -self.waiting.num_joined * (sequence.request.group is not None),
        ),
    )


@defect("vllm", "work conserving")
@defect("orca", "work conserving")
def half_of_the_batch_stays_empty(patch: Patch) -> None:
    def full(self: QueuePolicy, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if len(self.running) + joining >= max(1, self.options.max_batch // 2):
            return Reason("batch-full", sequence.id, "not admitted: the batch is full")
        return None

    for policy in (Iteration, PrefillFirst):
        patch.setattr(policy, "admission", full)


@defect("instances", "work conserving")
@instead_of(Instances, "admission")
def an_instance_that_serves_none(right: Any, self: Instances, sequence: Sequence, *arguments: Any) -> Reason | None:
    if any(self.serving) and not all(self.serving):
        return Reason("batch-full", sequence.id, "not admitted: all instances are serving")
    return right(self, sequence, *arguments)


@defect("fluid", "work conserving")
@instead_of(GrowingFill, "lacks")
def room_that_is_not_used(lacks: Any, self: GrowingFill, newcomer: Sequence) -> Reason | None:
    """One newcomer at a time, until it has its answer."""
    if self.running:
        return Reason("memory-full", newcomer.id, "not admitted: memory is in use")
    return lacks(self, newcomer)
