"""What goes wrong in the policies that serve texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, instead_of, leak_arrivals

from minifuse.batching.dynamic import Dynamic
from minifuse.batching.fusion import Fusion
from minifuse.batching.growing import GrowingFill
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.prefill_first import PrefillFirst
from minifuse.batching.queue import QueueOptions
from minifuse.batching.serial import Serial
from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Phase, Request, Sequence
from minifuse.testing.filling import FillBooks
from minifuse.testing.waiting import WaitingBooks
from minifuse.testing.watched import WatchedPolicy


def _in_any_order(patch: Patch, rank: Callable[[QueuePolicy, Sequence], Any]) -> None:
    """Another order, not for the law "queue" to see, nor for "work conserving", which reads the same books."""
    patch.setattr(QueuePolicy, "rank", rank)
    patch.setattr(WaitingBooks, "propose", lambda *arguments: None)
    patch.setattr(FillBooks, "propose", lambda *arguments, **named: None)


@defect("orca", "pure")
@instead_of(QueuePolicy, "propose")
def propose_touches_memory(propose: Any, self: QueuePolicy, worker: int, now: float, memory: Any) -> Proposal:
    proposal = propose(self, worker, now, memory)
    for sequence in proposal.admit:
        memory.books.cached[sequence.id] = 0  # "it will be needed anyway"
    return proposal


@defect("orca", "pure", check="reproducible")
@defect("orca", "same in simulation", check="same_in_simulation")
def decides_by_chance(patch: Patch) -> None:
    """A policy that decides by something other than its arguments: differently in each run."""
    counter = iter(range(10**9))

    _in_any_order(patch, lambda self, sequence: next(counter) % 3)


@defect("orca", "budget")
def budget_overrun(patch: Patch) -> None:
    patch.setattr(Iteration, "token_budget", property(lambda self: (self.options.token_budget or math.inf) + 1))


@defect("vllm", "budget", batching__prompt_tokens=4)
@instead_of(PrefillFirst, "_prompts_full")
def the_limit_of_whole_prompts_is_forgotten(full: Any, self: PrefillFirst, *arguments: Any) -> None:
    """Newcomers join whatever prompts the iteration has."""


@defect("serial", "progress")
@instead_of(Serial, "admission")
def last_come_first_served(right: Any, self: Serial, sequence: Sequence, joining: int, now: float) -> Any:
    """The newest is always tried first and the oldest never let in."""
    busy = self.running or joining
    return Reason("batch-full", sequence.id, "not admitted: the batch is full") if busy or sequence.id == "r0" else None


@defect("serial", "blind", check="blind")
def waits_for_a_request_it_cannot_know(patch: Patch) -> None:
    """A policy that has the list of arrivals, and saves its place for the next one."""
    leak_arrivals(patch)
    admission = Serial.admission

    def waiting(self: Any, sequence: Sequence, joining: int, now: float) -> Any:
        if any(now < arrival < now + 0.05 for arrival in self.future):
            return Reason("saved", sequence.id, "not admitted: another request is about to come")
        return admission(self, sequence, joining, now)

    patch.setattr(Serial, "admission", waiting)


@defect("orca", "pure", check="reproducible")
def answers_depend_on_a_hash(patch: Patch) -> None:
    """The next to run is taken from a set, as it were."""
    _in_any_order(patch, lambda self, sequence: hash(sequence.id))


@defect("dynamic", "window")
def sleeps_before_every_batch(patch: Patch) -> None:
    admission = Dynamic._window_closes
    patch.setattr(Dynamic, "_window_closes", lambda self: admission(self) + 36000)


@defect("orca", "conservation")
def two_workers_one_sequence(patch: Patch) -> None:
    """A policy for one worker that claims to have work for two gives both the same."""
    patch.setattr(QueuePolicy, "workers", 2)


@defect("fusion", "conservation", kinds=("crowd",))
def fused_before_it_is_ready(patch: Patch) -> None:
    """Every sequence that has a place in memory is taken for ready."""
    iterate = Fusion._iterate

    def hasty(self: Fusion, memory: Any) -> Proposal:
        for sequence in self.admitted.values():
            sequence.phase = Phase.READY
        return iterate(self, memory)

    patch.setattr(Fusion, "_iterate", hasty)
    patch.setattr(WatchedPolicy, "propose", lambda self, *arguments: self.policy.propose(*arguments))  # not for "pure"


@defect("vllm", "conservation", kinds=("growing",))
@instead_of(QueuePolicy, "_fill")
def evicted_and_at_work(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    """An evicted sequence has its work for this iteration already."""
    proposal = fill(self, *arguments)
    late = [Work(sequence.id, len(sequence) - 1, len(sequence)) for sequence in proposal.evict]
    return replace(proposal, work=(*proposal.work, *late))


@defect("vllm", "queue", kinds=("growing",))
@instead_of(GrowingFill, "victims")
def oldest_evicted_first(right: Any, self: GrowingFill) -> Any:
    return iter(list(self.policy.running))


@defect("orca", "queue", batching__order="priority")
@defect("instances", "queue", batching__order="priority")
@instead_of(QueueOptions, "rank")
def priority_ignored(right: Any, options: QueueOptions, request: Request) -> float:
    return 0


@defect("orca", "queue", batching__order="priority", batching__ageing=None)
@instead_of(QueueOptions, "rank")
def lowest_priority_first(right: Any, options: QueueOptions, request: Request) -> float:
    return request.priority


@defect("static", "queue", batching__order="priority", batching__ageing=0.004)
@instead_of(QueueOptions, "rank")
def ageing_reversed(right: Any, options: QueueOptions, request: Request) -> float:
    """The longer a request waits, the lower it falls."""
    return -request.arrival_s - request.priority * (options.ageing or 1)


@defect("vllm", "queue", kinds=("growing",), memory__watermark=0.0)
@instead_of(QueuePolicy, "_fill")
def overtaken_when_memory_is_full(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    """Where the first in the queue finds no room, a smaller one is let in."""
    proposal = fill(self, *arguments)
    for ticket in [self.waiting.remove(reason.sequence) for reason in proposal.reasons if reason.code == "memory-full"]:
        second = fill(self, *arguments) if not proposal.work else proposal
        self.waiting.add(ticket)
        return second
    return proposal


@defect("vllm", "queue", kinds=("growing",), memory__preemption="recompute")
@defect("vllm", "queue", kinds=("growing",), memory__preemption="swap", memory__host=None)
@defect("vllm", "queue", kinds=("growing",), memory__preemption="recompute", batching__order="priority")
@instead_of(QueuePolicy, "_fill")
def evicted_to_the_end_of_the_queue(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    proposal = fill(self, *arguments)
    for sequence in proposal.evict:
        ticket = self.waiting.remove(sequence.id)
        self.waiting.num_joined += 1
        self.waiting.add((ticket[0], self.waiting.num_joined, sequence))
    return proposal


@defect("vllm", "progress", "queue", "reasons", kinds=("growing",))
@instead_of(QueuePolicy, "_fill")
def evicted_and_forgotten(propose: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    """An evicted sequence leaves the queue for good."""
    proposal = propose(self, *arguments)
    for sequence in proposal.evict:
        self.waiting.remove(sequence.id)
    return proposal


@defect("srpt+paged+paged", "conservation", "ghost", "budget", kinds=("displacing",), memory__share=True)
def shares_with_a_sequence_that_is_displaced(patch: Patch) -> None:
    """A newcomer's work is counted without what it shares, and then its donor is evicted for another newcomer."""

    def evict_after_admitting(self: GrowingFill) -> None:
        self.room = self.memory.room()
        for sequence, _ in self.running:
            self.room.extend(sequence)
        for sequence in self.joining:
            self.lacks(sequence)
        for sequence in self.displaced.values():
            self.room.evict(sequence)

    patch.setattr(GrowingFill, "retry", evict_after_admitting)
