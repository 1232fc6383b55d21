"""Who overtakes whom in a run, counted one by one."""

from __future__ import annotations

import math
from collections import Counter
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

    A policy that claims 0 admits those that arrive at the same moment in the order in which it received them, too. The
    trace tells by how many the most overtaken one was: law "counting". Under a policy with the option
    `batching.starve`, a request that waits is overtaken for so long at most: by none that arrives later than that.
    """
    starve: float | None = getattr(check_settings(case.row, case.settings)["batching"], "starve", None)
    arrival_s, passed, early = _overtaken_by(case, seen)
    for (name, other), since_s in passed.items():
        if starve is not None and arrival_s[other] > since_s + starve + 1e-9:
            raise LawBroken(
                "overtaking", f"{name} had waited for {starve} s when {other} arrived, which was admitted first"
            )
    counts = Counter(name for name, _ in passed)
    most = max(counts.values(), default=0)
    told = compute_metrics(seen.handed)["most_overtaken"]
    if told != most:
        raise LawBroken("counting", f"the metrics have {told} requests that overtook one, and {most} did: {counts}")
    claimed: int | None = stage("batching", case.row.batching).overtaken_at_most
    if claimed is None or case.settings.get("batching.order") == "priority":
        return
    claims = f"the policy {case.row.batching} claims at most {claimed} (overtaken_at_most)"
    for name, count in counts.items():
        if count > claimed:
            others = [other for one, other in passed if one == name]
            raise LawBroken("overtaking", f"{name} was overtaken by {others}, and {claims}")
    for name, other in early if claimed == 0 else ():
        raise LawBroken("overtaking", f"{other}, received after {name} at the same moment, overtook it, and {claims}")


Pair = tuple[str, str]  # a request, and another that was admitted while it waited, at first or after an eviction


def _overtaken_by(case: Case, seen: Observation) -> tuple[dict[str, float], dict[Pair, float], list[Pair]]:
    """When each request arrived; the pairs of which the other arrived later, with the begin of the wait; and those of
    which the other arrived at the same moment and was received later."""
    arrived = {request.id for request in case.requests if not seen.never_arrived(request)}
    arrival_s = {name: seen.answers[name].request.arrival_s for name in seen.answers.keys() & arrived}
    order = {name: (arrival_s[name], i) for i, name in enumerate(seen.arrived_s) if name in arrival_s}
    waits = {name: [[arrival_s[name], seen.ended_s.get(name, math.inf)]] for name in arrival_s}
    began_s: dict[str, float] = {}
    for step in sorted(seen.steps, key=lambda step: step.started_s):
        for name in step.plan.evicted:
            waits[name].append([step.started_s, seen.ended_s.get(name, math.inf)])
        for name in step.plan.admitted:
            began_s.setdefault(name, step.started_s)
            waits[name][-1][1] = min(waits[name][-1][1], step.started_s)
    passed: dict[Pair, float] = {}
    early: list[Pair] = []
    for name, (other, began) in product(order, began_s.items()):
        starts = [start for start, stop in waits[name] if start <= began < stop]
        if starts and arrival_s[other] > arrival_s[name]:
            passed[name, other] = max(starts)
        elif starts and order[other] > order[name]:
            early.append((name, other))
    return arrival_s, passed, early
