"""The checks that every run has: of the sequences that a proposal names, and of the moves of a plan."""

from __future__ import annotations

from minifuse.contracts.moves import check_move
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Placement, Plan, Proposal
from minifuse.core.request import Phase
from minifuse.core.requests import Observer, Requests

__all__ = ["Lawful", "check_sequences"]

WAITING = (Phase.RECEIVED, Phase.SUSPENDED)
ADMITTED = (Phase.RUNNING, Phase.READY, Phase.PREPROCESSING)


class Lawful(Observer):
    """Raises `LawBroken` where a plan must not begin: its cost grows with the plan alone."""

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        if worker is not None and proposal.work:
            check_sequences(worker, proposal, requests)
        return proposal

    def planned(self, plan: Plan, placement: Placement) -> None:
        for move in plan.moves:
            check_move(move, len(plan.waves) if plan.work else 0)


def check_sequences(worker: int, proposal: Proposal, requests: Requests) -> None:
    """Raise `LawBroken` unless waiting sequences are admitted, running ones evicted, and admitted ones worked on.

    No sequence may be evicted, or scheduled again, while a plan of its own runs. With a depth above one, a plan may
    continue a sequence whose last plan is queued on the same worker; the nodes of a cell graph may be divided among
    workers.
    """
    sequences, in_flight = requests.sequences, requests.in_flight
    joining, leaving = {one.id for one in proposal.admit}, {one.id for one in proposal.evict}
    if joining or leaving:
        _check_changes(worker, proposal, requests)
    names = {work.sequence for work in proposal.work}
    if leaving and (gone := names & leaving):
        raise LawBroken("conservation", f"worker {worker} was to evict {min(gone)} and to work on it")
    for name in names:
        sequence = sequences.get(name)
        if sequence is None or (sequence.phase not in ADMITTED and name not in joining):
            raise LawBroken("conservation", f"worker {worker} was to work on {name}, which was never admitted")
    for plan, _, used in in_flight:
        in_order = in_flight.depth > 1 and plan.worker == worker
        for name in () if in_order else used & names:
            if sequences[name].graph is None:
                raise LawBroken("conservation", f"worker {worker} was given {name}, whose last work is not done")


def _check_changes(worker: int, proposal: Proposal, requests: Requests) -> None:
    """Raise `LawBroken` unless each sequence that is admitted waits, and each that is evicted runs."""
    for phases, verb, some in ((WAITING, "admit", proposal.admit), (ADMITTED, "evict", proposal.evict)):
        for one in some:
            state = ""
            if requests.sequences.get(one.id) is not one:
                state = "which is not one received and not yet released"
            elif one.phase not in phases:
                state = f"which is {one.phase.value}"
            elif requests.in_flight.workers_of(one.id):
                state = "whose last work is not done"
            if state:
                raise LawBroken("conservation", f"worker {worker} was to {verb} {one.id}, {state}")
    changed = (*proposal.admit, *proposal.evict)
    if len({one.id for one in changed}) < len(changed):
        raise LawBroken("conservation", f"worker {worker} was to admit or to evict a sequence a second time")
