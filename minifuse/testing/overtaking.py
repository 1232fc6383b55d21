"""Who overtakes whom in a run, counted one by one."""

from __future__ import annotations

import math
from itertools import product

from minifuse.errors import LawBroken
from minifuse.metrics import compute_metrics
from minifuse.serve.assembly import check_settings
from minifuse.stages import stage
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case

__all__ = ["check_overtaking"]


def check_overtaking(case: Case, seen: Observation) -> None:
    """Under first come, first served, no request is overtaken by more than the policy claims (`overtaken_at_most`).

    And the trace tells by how many the most overtaken one was: law "counting". Under a policy with the option
    `batching.starve`, a request that waits is overtaken for so long at most: by none that arrives later than that.
    """
    starve: float | None = vars(check_settings(case.row, case.settings)["batching"]).get("starve")
    passed, late = _overtaken_by(case, seen, math.inf if starve is None else starve)
    if late:
        name, other = late[0]
        raise LawBroken(
            "overtaking", f"{name} had waited for {starve} s when {other} arrived, which was admitted first"
        )
    most = max(map(len, passed.values()), default=0)
    told = compute_metrics(seen.handed)["most_overtaken"]
    if told != most:
        raise LawBroken("counting", f"the metrics have {told} requests that overtook one, and {most} did: {passed}")
    claimed: int | None = stage("batching", case.row.batching).overtaken_at_most
    if claimed is None or case.settings.get("batching.order") == "priority":
        return
    for name, others in passed.items():
        if len(others) > claimed:
            raise LawBroken(
                "overtaking",
                f"{name} was overtaken by {others}, and the policy {case.row.batching} claims at most {claimed} "
                "(overtaken_at_most)",
            )


def _overtaken_by(case: Case, seen: Observation, patience: float) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Of each request those that arrived after it, and were admitted while it waited, at first or after an eviction.

    And all pairs of a request, and another that arrived more than `patience` after the wait had begun.
    """
    arrived = {request.id for request in case.requests if not seen.never_arrived(request)}
    arrival_s = {name: seen.answers[name].request.arrival_s for name in seen.answers.keys() & arrived}
    waits = {name: [[arrival_s[name], seen.ended_s.get(name, math.inf)]] for name in arrival_s}
    began_s: dict[str, float] = {}
    for step in sorted(seen.steps, key=lambda step: step.started_s):
        for name in step.plan.evicted:
            waits[name].append([step.started_s, seen.ended_s.get(name, math.inf)])
        for name in step.plan.admitted:
            began_s.setdefault(name, step.started_s)
            waits[name][-1][1] = min(waits[name][-1][1], step.started_s)
    passed: dict[str, list[str]] = {name: [] for name in arrival_s}
    late = []
    for name, (other, began) in product(arrival_s, began_s.items()):
        starts = [start for start, stop in waits[name] if start <= began < stop]
        if starts and arrival_s[other] > arrival_s[name]:
            passed[name].append(other)
            if arrival_s[other] > max(starts) + patience + 1e-9:
                late.append((name, other))
    return passed, late
