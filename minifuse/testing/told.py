"""Compares the trace and the metrics of a run with what the run did."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.core.errors import LawBroken
from minifuse.core.report import StepReport
from minifuse.testing.observation import Observation
from minifuse.trace.log import Event
from minifuse.trace.metrics import compute_metrics


def check_trace(seen: Observation) -> None:
    """Law "counting": check every step of the trace, and the sums of the run."""
    _check_steps(seen.trace.events(), seen.steps)
    _check_steps(seen.handed, seen.steps)
    computed = sum(step.plan.num_computed for step in seen.steps)  # which has been compared with the rows computed
    needed = sum(work.stop - work.start for step in seen.steps for work in step.plan.work)
    told = compute_metrics(seen.handed)["tokens"]
    if (told["computed"], told["idle"]) != (computed, computed - needed):
        raise LawBroken("counting", f"{computed} tokens were computed, {needed} of them needed; metrics: {told}")


def _check_steps(events: Iterable[Event], steps: list[StepReport]) -> None:
    told = [event for event in events if event["event"] == "step"]
    if len(told) != len(steps):
        raise LawBroken("counting", f"the trace has {len(told)} steps, and there were {len(steps)}")
    for event, step in zip(told, steps, strict=True):
        plan, kv = step.plan, [*event["kv"], *event.get("kept", (0, 0))]
        needed = sum(stop - start for _, start, stop, *_ in event["work"])
        right = {
            "work": [tuple(work[:3]) for work in event["work"]] == [tuple(work[:3]) for work in plan.work],
            "computed": event["computed"] == plan.num_computed,
            "idle": event["idle"] == event["computed"] - needed,
            "tokens": {name: tuple(tokens) for name, tokens in event["tokens"].items()} == dict(step.tokens),
            "finished": event["finished"] == {name: reason.value for name, reason in step.finished.items()},
            "kv": kv == list(step.usage),
            "reused": [tuple(one) for one in event.get("reused", ())] == list(plan.reused),
            "wall": (event["wall"]["start_s"], event["wall"]["end_s"]) == (step.started_s, step.ended_s),
        }
        if wrong := [name for name, holds in right.items() if not holds]:
            raise LawBroken("counting", f"the trace misstates {wrong} of step {plan.step}: {event}")
