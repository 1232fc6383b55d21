"""What goes wrong in transfers that run beside the computing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from conformance.defects.harness import Patch, defect, instead_of

from minifuse.core.measured import Measured
from minifuse.core.plan import Placement, Proposal
from minifuse.execute.link import Link
from minifuse.execute.transfers import MovesOfPlan, PlanTransfers
from minifuse.memory.paged.paged import Paged

swapping = partial(defect, "vllm", kinds=("growing",), memory__preemption="swap", memory__host=None)
overlapped = partial(swapping, memory__transfer="overlapped")


def _after_the_wave(kind: str, placement: Placement) -> Placement:
    """The same, its moves of this kind made when the wave has been computed."""
    moves = [move._replace(moment="after") if move.kind == kind else move for move in placement.moves]
    return replace(placement, moves=tuple(moves))


@overlapped("conservation")
@instead_of(Paged, "place")
def swapped_in_after_the_wave_that_reads_it(place: Any, self: Paged, proposal: Proposal, now: float) -> Any:
    return _after_the_wave("swap_in", place(self, proposal, now))


@overlapped("conservation")
@instead_of(Paged, "place")
def overwritten_before_it_was_copied_out(place: Any, self: Paged, proposal: Proposal, now: float) -> Any:
    """A block that is swapped out belongs to another sequence, which writes into it, before it is copied."""
    return _after_the_wave("swap_out", place(self, proposal, now))


@overlapped("exact")
@instead_of(PlanTransfers, "copy")
def only_the_first_layer_is_copied(copy: Any, self: PlanTransfers, moves: Any, layer: int) -> float:
    return float(copy(self, moves, layer)) if layer == 0 else 0.0


@overlapped("exact")
def no_layer_waits_and_the_copies_come_late(patch: Patch) -> None:
    """What should begin with the plan begins when all has been computed."""
    begin, end = MovesOfPlan.after, MovesOfPlan.end
    patch.setattr(MovesOfPlan, "before", lambda self, turn: None)
    patch.setattr(MovesOfPlan, "after", lambda self, turn: None)

    def late(self: MovesOfPlan) -> Any:
        begin(self, -1)
        return end(self)

    patch.setattr(MovesOfPlan, "end", late)


@swapping("counting")
@instead_of(Link, "carried")
def bytes_counted_for_the_other_direction(carried: Any, self: Link, plan: Any) -> Measured:
    found = carried(self, plan)
    return found._replace(to_host_bytes=found.to_device_bytes, to_device_bytes=found.to_host_bytes)


@swapping("counting")
@instead_of(Link, "run")
def a_swap_takes_no_time(run: Any, self: Link, plan: Any, computing_s: float, now: float) -> Measured:
    """All of it counts as hidden, however long it takes."""
    found: Measured = run(self, plan, computing_s, now)
    return found._replace(exposed_s=0.0)
