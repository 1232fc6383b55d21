"""Checks every run for wrong sequences in a proposal and wrong moves in a plan."""

from __future__ import annotations

from minifuse.contracts.fault import Wrong
from minifuse.core.in_flight import InFlight
from minifuse.core.plan import Move, Placement, Plan, Proposal
from minifuse.core.request import Phase
from minifuse.core.requests import Observer, Requests

WAITING = (Phase.RECEIVED, Phase.SUSPENDED)
ADMITTED = (Phase.RUNNING, Phase.READY, Phase.PREPROCESSING)


class Lawful(Observer):
    """Raises `Wrong`, before a plan begins, if its sequences or moves break a law."""

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        if worker is not None and proposal.work:
            check_sequences(worker, proposal, requests)
        return proposal

    def planned(self, plan: Plan, placement: Placement) -> None:
        for move in plan.moves:
            check_move(move, len(plan.waves) if plan.work else 0)


def check_sequences(worker: int, proposal: Proposal, requests: Requests) -> None:
    """Raise `Wrong` if a proposal admits, evicts or schedules a sequence that it must not.

    Besides being in the right phase, a sequence with a plan in flight may be neither evicted nor scheduled again. There
    are two exceptions: with a depth above one, a plan may continue a sequence whose last plan is queued on the same
    worker, and several workers may compute nodes of one cell graph.
    """
    sequences, in_flight = requests.sequences, requests.in_flight
    names = {work.sequence for work in proposal.work}
    joining = {one.id for one in proposal.admit} if proposal.admit else ()
    if proposal.admit or proposal.evict:
        _check_changes(worker, proposal, names, requests)
    beside = bool(in_flight)  # whether other plans run
    for name in names:
        sequence = sequences.get(name)
        if sequence is None or (sequence.phase not in ADMITTED and name not in joining):
            raise _wrong(worker, f"to work on {name}, which was never admitted")
        if beside and sequence.graph is None and not _in_order(worker, name, in_flight):
            raise _wrong(worker, f"given {name}, whose last work is not done")


def _in_order(worker: int, name: str, in_flight: InFlight) -> bool:
    """Return whether all plans that use a sequence are queued on this worker, in order."""
    using = in_flight.using(name)
    return not using or (in_flight.depth > 1 and all(plan.worker == worker for plan in using))


def _check_changes(worker: int, proposal: Proposal, names: set[str], requests: Requests) -> None:
    """Raise `Wrong` unless admitted sequences are waiting, and evicted ones admitted and without work."""
    for phases, verb, some in ((WAITING, "admit", proposal.admit), (ADMITTED, "evict", proposal.evict)):
        for one in some:
            if requests.sequences.get(one.id) is not one:
                raise _wrong(worker, f"to {verb} {one.id}, which is not one received and not yet released")
            if one.phase not in phases:
                raise _wrong(worker, f"to {verb} {one.id}, which is {one.phase.value}")
            if requests.in_flight.using(one.id):
                raise _wrong(worker, f"to {verb} {one.id}, whose last work is not done")
    changed = {one.id for one in (*proposal.admit, *proposal.evict)}
    if len(changed) < len(proposal.admit) + len(proposal.evict):
        raise _wrong(worker, "to admit or to evict a sequence a second time")
    if gone := names & {one.id for one in proposal.evict}:
        raise _wrong(worker, f"to evict {min(gone)} and to work on it")


def _wrong(worker: int, what: str) -> Wrong:
    return Wrong("a Proposal that cannot be", f"worker {worker} was {what}", "conservation")


def by_layer(move: Move) -> bool:
    """Return whether a move is made layer by layer, while waves are attended."""
    return move.moment in ("before", "after")


def check_move(move: Move, num_waves: int) -> None:
    """Raise `Wrong` if a plan of `num_waves` waves (0 without work) cannot make a move."""
    behind = move.moment == "behind"
    if move.source_tier == move.target_tier == "host":
        allowed = "move KV on the device, or to or from it"
    elif behind != (num_waves == 0):
        allowed = "moves behind everything have a plan of their own, without waves"
    elif behind and not move.crosses:
        allowed = "only transfers may be behind everything"
    elif by_layer(move) and not 0 <= move.wave < num_waves:
        allowed = "its wave is one of its plan's"
    elif move.num_tokens < 1 or min(move.source, move.target) < 0:
        allowed = "give slots from 0, and at least one token"
    else:
        return
    raise Wrong(f"{move} in a plan of {num_waves} waves", allowed, "layout")
