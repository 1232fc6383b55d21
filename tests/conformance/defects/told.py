"""What goes wrong in what a run tells of itself, and in virtual time."""

from __future__ import annotations

import math
from typing import Any

from conformance.defects.harness import Patch, defect, graph_defect, instead_of

from minifuse.core.report import StepReport
from minifuse.execute.virtual import VirtualExecutor
from minifuse.trace import log as trace
from minifuse.trace.overtaken import Overtaken


@defect("static", "counting")
@graph_defect("graph-padded", "counting")
@instead_of(trace, "step_decisions")
def the_trace_counts_idle_tokens_as_needed(decisions: Any, report: StepReport, *arguments: Any) -> dict[str, Any]:
    return {**decisions(report, *arguments), "idle": 0}


@defect("orca", "counting")
@instead_of(trace, "step_decisions")
def the_trace_counts_a_token_too_many(decisions: Any, report: StepReport, *arguments: Any) -> dict[str, Any]:
    told = decisions(report, *arguments)
    return {**told, "computed": told["computed"] + 1, "idle": told["idle"] + 1}


@defect("static", "counting")
@graph_defect("graph-padded", "counting")
@instead_of(trace, "step_figures")
def idle_tokens_are_not_handed_on(figures: Any, report: StepReport) -> dict[str, Any]:
    """What is kept is right, and what the metrics of a long run are counted from is not."""
    return {**figures(report), "idle": 0}


@defect("orca", "counting")
@instead_of(trace, "step_decisions")
def the_trace_tells_of_one_piece_of_work(decisions: Any, report: StepReport, *arguments: Any) -> dict[str, Any]:
    told = decisions(report, *arguments)
    return {**told, "work": told["work"][:1]}


@defect("orca", "counting", batching__order="priority")
@graph_defect("graph-merged", "counting", batching__order="priority")
def overtaking_is_not_counted(patch: Patch) -> None:
    patch.setattr(Overtaken, "most", lambda self, waiting: 0)


@defect("instances", "counting")
@graph_defect("cellular", "counting")
def what_was_overtaken_is_counted_before_all_plans_are_seen(patch: Patch) -> None:
    """Of several workers, one may have admitted a request long before its plan completes."""
    patch.setattr(Overtaken, "settle", _settled(Overtaken.settle))


def _settled(settle: Any) -> Any:
    return lambda self, due: settle(self, math.inf)


@defect("instances", "time")
@defect("fusion", "time", batching__preprocess="worker")
@graph_defect("cellular", "time", batching__workers=2)
def a_shared_device_is_not_shared(patch: Patch) -> None:
    """Each worker gets all of it."""
    init = VirtualExecutor.__init__
    patch.setattr(
        VirtualExecutor, "__init__", lambda self, *given, **named: init(self, *given, **{**named, "shared": False})
    )


@defect("instances", "time")
def a_device_layers_in_turn_all_that_ever_ran(patch: Patch) -> None:
    advance = VirtualExecutor._advance

    def slower(self: VirtualExecutor, now: float) -> None:
        before = self._served
        advance(self, now)
        if self._shared:
            self._served = before + (self._served - before) / 2

    patch.setattr(VirtualExecutor, "_advance", slower)
