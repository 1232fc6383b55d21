"""What goes wrong in what policies promise: reasons, windows, groups that start together, how far one is overtaken."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, graph_defect, instead_of, unseen_by_queue

from minifuse.batching import fusion, instances
from minifuse.batching.cellular import Cellular
from minifuse.batching.dynamic import Dynamic
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.batching.static import Static
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence


@defect("orca", "conservation")
@instead_of(QueuePolicy, "_fill")
def the_same_work_twice_in_a_plan(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    proposal = fill(self, *arguments)
    return replace(proposal, work=(*proposal.work, *proposal.work[-1:]))


@defect("orca", "reasons")
@instead_of(QueuePolicy, "_fill")
def reasons_that_are_words(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    proposal = fill(self, *arguments)
    return replace(proposal, reasons=tuple(f"{reason.sequence} is full" for reason in proposal.reasons))


@defect("serial", "reasons")
@instead_of(QueuePolicy, "_fill")
def reasons_of_what_has_ended(fill: Any, self: QueuePolicy, *arguments: Any) -> Proposal:
    proposal = fill(self, *arguments)
    return replace(proposal, reasons=tuple(reason._replace(sequence="r0") for reason in proposal.reasons))


@defect("static", "reasons")
@instead_of(Static, "admission")
def a_reason_without_a_sentence(admission: Any, self: Static, *arguments: Any) -> Reason | None:
    reason = admission(self, *arguments)
    return None if reason is None else reason._replace(text="")


@defect("dynamic", "reasons")
@instead_of(Dynamic, "propose")
def waits_without_a_reason(propose: Any, self: Dynamic, *arguments: Any) -> Proposal:
    return replace(propose(self, *arguments), reasons=())


@defect("orca", "progress", "work conserving")
@instead_of(Iteration, "propose")
def wakes_itself_for_ever(propose: Any, self: Iteration, worker: int, now: float, memory: Any) -> Proposal:
    """It waits for a fourth request, which never comes, and looks for it again and again."""
    if len(self.waiting) + len(self.running) < 4:
        waiting = tuple(Reason("too-few", sequence.id, "not admitted: too few wait") for sequence in self.waiting)
        return Proposal(reasons=waiting, wake_at=now + 1e-4)
    return propose(self, worker, now, memory)


@graph_defect("cellular", "progress")
@instead_of(Cellular, "propose")
def one_worker_wakes_itself_for_ever(propose: Any, self: Cellular, worker: int, now: float, memory: Any) -> Proposal:
    return replace(propose(self, worker, now, memory), work=(), admit=(), wake_at=now)


@defect("dynamic", "window", batching__window=0.02)
@instead_of(Dynamic, "receive")
def the_window_restarts_with_each_newcomer(receive: Any, self: Dynamic, sequence: Sequence) -> None:
    receive(self, sequence)
    self.arrived = deque([sequence])


@defect("fusion", "together")
@defect("instances", "together")
def a_group_started_apart(patch: Patch) -> None:
    for module in (fusion, instances):
        patch.setattr(module, "prompts_of_first", lambda waiting: (next(iter(waiting)),))


@defect("static", "overtaking", batching__order="fcfs")
def the_newest_first(patch: Patch) -> None:
    """And the policy claims that no request is overtaken."""
    patch.setattr(QueueOptions, "rank", lambda options, request: -request.arrival_s)
    unseen_by_queue(patch)


@defect("orca", "overtaking", batching__order="fcfs")
def overtaken_by_one_more_than_is_claimed(patch: Patch) -> None:
    """And it claims that no request is overtaken by more than one."""
    the_newest_first(patch)
    patch.setattr(Iteration, "overtaken_at_most", 1)
