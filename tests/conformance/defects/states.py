"""What goes wrong in the memory of states, and where cells are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, graph_defect, instead_of, one_slot_less

from minifuse.core.plan import Placement, Proposal
from minifuse.execute.cells import CellRunner, Issued
from minifuse.execute.state_storage import StateStorage
from minifuse.memory.states import states
from minifuse.memory.states.states import States


def _placed(patch: Patch, wrong: Callable[[Placement], Placement]) -> None:
    place = States.place
    patch.setattr(States, "place", lambda self, proposal, now: wrong(place(self, proposal, now)))


@graph_defect("cellular", "ghost")
def reads_in_wrong_order(patch: Patch) -> None:
    def wrong(placement: Placement) -> Placement:
        return replace(placement, places=tuple(p._replace(reads=p.reads[::-1]) for p in placement.places))

    _placed(patch, wrong)


@graph_defect("cellular", "ghost")
def reads_of_a_neighbour(patch: Patch) -> None:
    """The first two nodes of a batch read each other's states."""

    def wrong(placement: Placement) -> Placement:
        first, *rest = placement.places
        if rest and len(first.reads) == len(rest[0].reads):
            first, rest[0] = first._replace(reads=rest[0].reads), rest[0]._replace(reads=first.reads)
        return replace(placement, places=(first, *rest))

    _placed(patch, wrong)


@graph_defect("cellular", "conservation")
def written_over_a_neighbour(patch: Patch) -> None:
    """All of a batch go where the first goes."""

    def wrong(placement: Placement) -> Placement:
        return replace(placement, places=tuple(p._replace(slot=placement.places[0].slot) for p in placement.places))

    _placed(patch, wrong)


@graph_defect("cellular", "conservation")
def freed_when_planned(patch: Patch) -> None:
    """A state counts as read when the plan that reads it has been made."""
    place, commit = States.place, States.commit

    def hasty(self: States, proposal: Proposal, now: float) -> Placement:
        placement = place(self, proposal, now)
        if len(proposal.waves) <= 1:
            commit(self, proposal, (), now)  # type: ignore[arg-type]  # it has work and waves
        return placement

    patch.setattr(States, "place", hasty)
    patch.setattr(States, "commit", lambda self, plan, sampled, now: self.usage())


@graph_defect("cellular", "conservation")
def never_freed(patch: Patch) -> None:
    patch.setattr(States, "_free", lambda self, slots: None)


@graph_defect("cellular", "budget")
def room_is_optimistic(patch: Patch) -> None:
    patch.setattr(states.StateTrial, "extend", lambda self, sequence: None)


@graph_defect("cellular", "conservation")
def usage_is_fiction(patch: Patch) -> None:
    usage = States.usage
    patch.setattr(States, "usage", lambda self: usage(self)._replace(used=0))


@graph_defect("cellular", "conservation")
@graph_defect("graph-merged", "conservation")
@instead_of(States, "usage")
def usage_claims_all_that_is_reserved(usage: Any, self: States) -> Any:
    right = usage(self)
    return right._replace(used=right.reserved)


@graph_defect("cellular", "refuse early")
def refuses_too_much(patch: Patch) -> None:
    instead_of(States, "receive")(one_slot_less)(patch)


@graph_defect("cellular", "progress")
def never_refuses(patch: Patch) -> None:
    """A request that can never be held waits for ever."""
    patch.setattr(States, "receive", lambda self, sequence: None)


@graph_defect("cellular", "exact")
@instead_of(StateStorage, "write")
def zero_slot_written(write: Any, self: StateStorage, field: int, slots: tuple[int, ...], what: Any) -> None:
    """The slot that constants of zero are read from is used as a place to write to."""
    write(self, field, slots, what)
    self.fields[field][self.zero] = what[0]


@graph_defect("cellular", "exact")
def gathered_in_order_of_slots(patch: Patch) -> None:
    read = StateStorage.read
    patch.setattr(StateStorage, "read", lambda self, field, slots: read(self, field, tuple(sorted(slots))))


@graph_defect("cellular", "exact")
def constants_in_wrong_rows(patch: Patch) -> None:
    constants = CellRunner._constants
    patch.setattr(CellRunner, "_constants", lambda self, batch, at, rows: constants(self, batch, at, rows[::-1]))


@graph_defect("cellular", "exact")
def results_of_another(patch: Patch) -> None:
    result = Issued.result
    patch.setattr(Issued, "result", lambda self, work, outputs: result(self, work[::-1], outputs))


@graph_defect("cellular", "exact")
@instead_of(Issued, "ran")
def results_forgotten(ran: Any, self: Issued) -> Any:
    """Of several results only the last is kept."""
    done = ran(self)
    return done._replace(results={name: dict([*found.items()][:1]) for name, found in done.results.items()})


@graph_defect("cellular", "exact", kinds=("seq2seq",))
def produced_by_another(patch: Patch) -> None:
    say = Issued.say
    patch.setattr(Issued, "say", lambda self, work, tokens: say(self, work, tokens.flip(0)))
