"""What goes wrong in the loop: requests taken in, refused and ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.defects.harness import Patch, defect, graph_defect, instead_of

from minifuse.core.engine import Engine
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.requests import Requests
from minifuse.core.turns import Turns
from minifuse.memory.contiguous import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.serve.requests import ServedRequests


@defect("orca", "exact")
@graph_defect("cellular", "exact", kinds=("seq2seq",))
@instead_of(Sequence, "why_finished")
def stop_noticed_late(ends: Any, self: Sequence) -> Any:
    """The stop token is looked for one token too late."""
    reason = ends(self)
    if reason is FinishReason.STOP and self.num_new < self.request.max_new_tokens:
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
    patch.setattr(Contiguous, "check", lambda self, *prompts: None)
    patch.setattr(TextReader, "check", lambda self, request, num_history=0: None)


@defect("instances", "progress", kinds=("few",))
@defect("serial", "refuse early", kinds=("few",))
@instead_of(Contiguous, "check")
def prompts_of_a_request_counted_one_by_one(check: Any, self: Contiguous, *prompts: Any) -> None:
    """A request is accepted if each of its prompts would fit alone."""
    for prompt in prompts:
        check(self, prompt)


@defect("orca", "in turn")
@defect("vllm", "in turn")
@instead_of(Turns, "due")
def history_without_its_last_token(due: Any, self: Turns, now: float) -> Any:
    """The last token of an answer, whose KV was never needed, is left out of the next turn's text."""
    for request, num_history in due(self, now):
        if num_history:
            text = request.prompt[: num_history - 1] + request.prompt[num_history:]
            yield replace(request, prompt=text), num_history - 1
        else:
            yield request, num_history


@defect("serial", "in turn", "progress", kinds=("few", "crowd"))
@instead_of(Turns, "ended")
def thinking_time_forgotten(ended: Any, self: Turns, sequence: Sequence) -> Any:
    self._behind[sequence.id] = [replace(request, delay_s=0.0) for request in self._behind.get(sequence.id, ())]
    return ended(self, sequence)


@defect("orca", "refuse early", "progress", kinds=("few",))
@instead_of(Contiguous, "check")
def history_takes_no_memory(check: Any, self: Contiguous, *prompts: Request) -> None:
    """A turn is checked as it was submitted, without the text before it."""
    if prompts[0].after is None:
        check(self, *prompts)


@defect("instances", "conservation", kinds=("crowd",))
@defect("fusion", "conservation", kinds=("crowd",))
@instead_of(ServedRequests, "finish")
def aborted_under_a_running_plan(finish: Any, self: Requests, sequence: Sequence, reason: FinishReason) -> None:
    """The memory of an aborted sequence is free at once, although a plan still writes to it."""
    finish(self, sequence, reason)
    if reason is FinishReason.ABORTED and sequence.id in self.in_flight.leaving:
        self.release(sequence)


@defect("orca", "time")
@graph_defect("cellular", "time")
def released_at_the_beginning_of_time(patch: Patch) -> None:
    """Memory is told of every end as if it were at once."""
    release = Requests.release

    def at_once(self: Requests, sequence: Sequence) -> None:
        now, self.now = self.now, 0.0
        release(self, sequence)
        self.now = now

    patch.setattr(Requests, "release", at_once)


@defect("orca", "conservation", "progress")
@graph_defect("cellular", "conservation", "progress")
def aborted_and_kept_by_memory(patch: Patch) -> None:
    release = Requests.release

    def keeping(self: Requests, sequence: Sequence) -> None:
        if sequence.finish_reason is not FinishReason.ABORTED:
            release(self, sequence)

    patch.setattr(Requests, "release", keeping)


@defect("orca", "conservation", check="interrupted")
@graph_defect("cellular", "conservation", check="interrupted")
def interrupted_and_kept_by_memory(patch: Patch) -> None:
    release = Requests.release

    def keeping(self: Requests, sequence: Sequence) -> None:
        if sequence.finish_reason is not FinishReason.INTERRUPTED:
            release(self, sequence)

    patch.setattr(Requests, "release", keeping)
