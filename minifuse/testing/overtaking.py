"""Counts, pair by pair, which requests overtake which others in a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.stages import stage
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case
from minifuse.trace.metrics import compute_metrics


def check_overtaking(case: Case, seen: Observation) -> None:
    """Check that no request is overtaken by more than the policy claims (`overtaken_at_most`).

    Claims are about first come, first served. A policy that claims 0 also admits requests that arrive at the same
    moment in the order in which it received them. A request that has waited longer than the option `batching.starve`
    must not be overtaken by later arrivals. The metrics must agree on how often the most overtaken request was
    overtaken (law "counting").
    """
    starts_s = {step.plan.step: step.started_s for step in seen.steps}
    counts = Counter(name for name, _ in _overtaken_by(case, seen, starts_s).later)
    most = max(counts.values(), default=0)
    told = compute_metrics(seen.handed)["most_overtaken"]
    if told != most:
        raise LawBroken("counting", f"the metrics have {told} requests that overtook one, and {most} did: {counts}")
    starve: float | None = getattr(case.options["batching"], "starve", None)
    claimed: int | None = stage("batching", case.row.batching).overtaken_at_most
    # A plan queued behind another of its worker starts late, but its newcomers were admitted when it was made.
    found = _overtaken_by(case, seen, seen.submitted_s)
    for (name, other), waited_s in found.later.items():
        if starve is not None and waited_s > starve + 1e-9:
            raise LawBroken("overtaking", f"{name} had waited {starve} s when {other} arrived, and {other} went first")
    if claimed is None or case.settings.get("batching.order") == "priority":
        return
    claims = f"the policy {case.row.batching} claims at most {claimed} (overtaken_at_most)"
    for name, count in Counter(name for name, _ in found.later).items():
        if count > claimed:
            others = [other for one, other in found.later if one == name]
            raise LawBroken("overtaking", f"{name} was overtaken by {others}, and {claims}")
    for name, other in found.together if claimed == 0 else ():
        raise LawBroken("overtaking", f"{other}, received after {name} at the same moment, overtook it, and {claims}")


class _Overtaken(NamedTuple):
    """Lists pairs (one, other) of requests: `other` was first admitted while `one` waited.

    `later` has the pairs in which `other` arrived later; the value is the number of seconds that `one` had waited when
    `other` arrived. `together` has the pairs that arrived at the same moment, if `other` was received after `one`.
    """

    later: dict[tuple[str, str], float]
    together: list[tuple[str, str]]


def _overtaken_by(case: Case, seen: Observation, when_s: Mapping[int, float]) -> _Overtaken:
    """Find the requests that are first admitted while another request waits.

    A request waits until it is admitted, and again after each eviction.

    Args:
        when_s: for each step, the time at which its newcomers count as admitted.
    """
    arrived = {request.id for request in case.requests if not seen.never_arrived(request)}
    arrival_s = {name: seen.answers[name].request.arrival_s for name in seen.answers.keys() & arrived}
    order = {name: (arrival_s[name], i) for i, name in enumerate(seen.arrived_s) if name in arrival_s}
    waits = {name: [[arrival_s[name], seen.ended_s.get(name, math.inf)]] for name in arrival_s}
    began_s: dict[str, float] = {}
    for plan in sorted((step.plan for step in seen.steps), key=lambda plan: when_s[plan.step]):
        now = when_s[plan.step]
        for name in plan.evicted:
            waits[name].append([now, seen.ended_s.get(name, math.inf)])
        for name in plan.admitted:
            began_s.setdefault(name, now)
            waits[name][-1][1] = min(waits[name][-1][1], now)
    found = _Overtaken({}, [])
    for name, (other, began) in product(order, began_s.items()):
        starts = [start for start, stop in waits[name] if start <= began < stop]
        if starts and arrival_s[other] > arrival_s[name]:
            found.later[name, other] = arrival_s[other] - max(starts)
        elif starts and order[other] > order[name]:
            found.together.append((name, other))
    return found
