"""Observes the loop, and checks what a user's own stages return."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from traceback import walk_tb
from typing import Any

from minifuse.contracts.attention import check_layout
from minifuse.contracts.fault import blamed, is_own, method_site, returned_by
from minifuse.contracts.placement import check_missing, check_moves, check_placement, check_room, check_usage
from minifuse.contracts.proposal import Known, check_proposal
from minifuse.core.errors import LawBroken, StageFault
from minifuse.core.observers import RunObserver
from minifuse.core.plan import Placement, Plan, Proposal
from minifuse.core.report import StepReport
from minifuse.core.requests import Requests
from minifuse.core.stages import Attention, Batching, Memory


class Checks(RunObserver):
    """Raises `StageFault` when a stage returns what its contract does not allow.

    Args:
        all_stages: whether to check minifuse's own stages, too.
    """

    def __init__(self, batching: Batching, memory: Memory, attention: Attention, *, all_stages: bool = False) -> None:
        self.batching, self.memory, self.attention = batching, memory, attention
        self.checks_batching = all_stages or not is_own(type(batching))
        self.checks_memory = all_stages or not is_own(type(memory))
        self.checks_attention = all_stages or not is_own(type(attention))
        self._known: dict[str, Known] = {}  # every sequence that was admitted and has not ended
        self._worker = 0  # the worker of the last proposal

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        if worker is None or not (self.checks_batching or self.checks_memory):
            return proposal
        if self.checks_memory and isinstance(proposal, Proposal):
            self._check_missing([str(work.sequence) for work in proposal.work], requests)
        # minifuse's own policies pass on the reasons that a room gives: a wrong reason is then memory's fault.
        stage, method = (self.batching, "propose") if self.checks_batching else (self.memory, "room")
        with returned_by(stage, method):
            check_proposal(proposal, self.batching, self.memory, requests, self._known, worker)
        self._worker = worker
        if is_own(type(self.batching)):
            return proposal
        return replace(proposal, room=None)  # `place` tries it again: its room may be from an earlier proposal

    def _check_missing(self, names: Iterable[str], requests: Requests) -> None:
        for sequence in [requests.sequences[name] for name in names if name in requests.sequences]:
            if not requests.in_flight.using(sequence.id):
                with returned_by(self.memory, "missing"):
                    check_missing(self.memory.missing(sequence), sequence)

    def placed(self, proposal: Proposal, placement: Placement, requests: Requests) -> None:
        self._known |= {sequence.id: Known(len(sequence)) for sequence in proposal.admit}
        if self.checks_memory:
            with returned_by(self.memory, "place"):
                check_placement(placement, proposal, self.memory, requests, self._known)
        self._move(placement.moves or proposal.evict)
        for work, place in zip(proposal.work, placement.places, strict=True):
            self._known[work.sequence].plan(work, place, self._worker)

    def planned(self, plan: Plan, placement: Placement) -> None:
        if plan.work and self.checks_attention:
            with returned_by(self.attention, "layout"):
                check_layout(plan.layout, plan.work, placement)
        elif not plan.work:
            if self.checks_memory:
                with returned_by(self.memory, "ahead"):
                    check_moves(plan.moves, self.memory, 0)
            self._move(plan.moves)

    def _move(self, moves: Collection[Any]) -> None:
        """If there are moves, forget where all sequences lie."""
        for known in self._known.values() if moves else ():
            known.place = None

    def completed(self, report: StepReport, requests: Requests) -> None:
        for name in self._known.keys() - requests.sequences.keys():
            del self._known[name]
        for work in report.plan.work:
            if work.sequence in self._known:
                self._known[work.sequence].complete(work, len(requests.sequences[work.sequence]))
        if self.checks_memory:
            with returned_by(self.memory, "commit" if report.plan.work else "landed"):
                check_usage(report.usage, self.memory)

    def fault_of(self, error: BaseException, requests: Requests) -> StageFault | None:
        """Return the fault of the user's stage that caused an error, or None."""
        if fault := blamed(error, self.batching, self.memory, self.attention):
            return fault
        own_policy, own_memory = is_own(type(self.batching)), is_own(type(self.memory))
        called = {(id(frame.f_locals.get("self")), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)}
        placing = (id(self.memory), "place") in called
        if isinstance(error, LawBroken) and own_memory and not own_policy and placing:
            site, what = method_site(type(self.batching), "propose"), str(error).rstrip(".")
            return StageFault(
                f"{site} returned a Proposal that memory cannot place ({what}): propose what its room() has taken, "
                "in that order",
                error.law,
            )
        asked = (id(self.batching), "propose") in called
        if not own_memory and (asked or (isinstance(error, LawBroken) and error.law == "progress")):
            return self._fault_of_memory(requests)
        return None

    def _fault_of_memory(self, requests: Requests) -> StageFault | None:
        """Check again what memory tells a policy: a wrong answer may have caused the error."""
        try:
            self._check_missing(requests.sequences, requests)
            with returned_by(self.memory, "room"):
                check_room(self.memory.room())
        except StageFault as fault:
            return fault
        except Exception as error:
            return blamed(error, self.memory)
        return None


def checks_of(batching: Batching, memory: Memory, attention: Attention) -> tuple[Checks, ...]:
    """Return the checks that these stages need; no checks if all are minifuse's own."""
    if all(is_own(type(stage)) for stage in (batching, memory, attention)):
        return ()
    return (Checks(batching, memory, attention),)
