"""What goes wrong in the loop: requests taken in, refused and ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, graph_defect, instead_of

from minifuse.engine import Engine
from minifuse.memory.reserved import ReservedMemory
from minifuse.request import FinishReason, Sequence, TextReader


@defect("orca", "exact")
@graph_defect("cellular", "exact", kinds=("seq2seq",))
@instead_of(Sequence, "why_finished")
def stop_noticed_late(ends: Any, self: Sequence) -> Any:
    """The stop token is looked for one token too late."""
    reason = ends(self)
    all_done = self.graph is not None and self.num_nodes_done == len(self.graph)
    if reason is FinishReason.STOP and not all_done and self.num_new < self.request.max_new_tokens:
        return FinishReason.STOP if self.num_new > 1 and self.tokens[-2] in self.request.stop_ids else None
    return reason


@defect("static", "progress")
@graph_defect("cellular", "progress")
def answer_held_back(patch: Patch) -> None:
    """What has finished is only reported with the next plan that completes."""
    commit = Engine.commit
    held: dict[int, Any] = {}

    def holding(self: Engine, completion: Any) -> Any:
        report = commit(self, completion)
        late = held.pop(id(self), {})
        held[id(self)] = dict(report.finished)
        return replace(report, finished=late)

    patch.setattr(Engine, "commit", holding)


@graph_defect("cellular", "counting", kinds=("seq2seq",))
def discarded_not_counted(patch: Patch) -> None:
    commit = Engine.commit
    patch.setattr(Engine, "commit", lambda self, completion: replace(commit(self, completion), discarded=0))


@defect("serial", "progress", "refuse early", kinds=("few",))
def never_refuses(patch: Patch) -> None:
    """A request that can never be held waits for ever."""
    patch.setattr(ReservedMemory, "check", lambda self, *prompts: None)
    patch.setattr(TextReader, "check", lambda self, request: None)


@defect("instances", "progress", kinds=("few",))
@defect("serial", "refuse early", kinds=("few",))
@instead_of(ReservedMemory, "check")
def prompts_of_a_request_counted_one_by_one(check: Any, self: ReservedMemory, *prompts: Any) -> None:
    """A request is accepted if each of its prompts would fit alone."""
    for prompt in prompts:
        check(self, prompt)
