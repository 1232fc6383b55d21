"""Law "second life": decisions do not depend on what was served before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from minifuse.core.errors import LawBroken, brief
from minifuse.core.places import Reuse
from minifuse.core.request import Request
from minifuse.testing.applies import lacks
from minifuse.testing.observation import Observation
from minifuse.testing.observed import observe
from minifuse.testing.subject import Case

# The times of both lives lie between the same two powers of two, so that their sums are rounded alike.
FIRST_S, SECOND_S, END_S = 1088.0, 1344.0, 1600.0
AGAIN = "again "
SECONDS = 0.01  # of each plan
MOST_ABORTS = 2  # of suspended requests, besides the scenario's aborts


def second_life(case: Case, seen: Observation) -> None:
    """Serve the same requests twice with the same stages: decisions must be alike.

    The law does not apply if memory keeps KV after the first life, or if a stage declares that it `remembers`. Some
    requests are aborted while suspended: stages then easily fail to free a place, or memory on either tier.
    """
    if lacks("second life", case.row):
        return
    scenario = replace(case.scenario, shared=False)  # on a shared device the end of a plan is a sum, which is rounded
    if "memory.keep" in case.row.option_names:
        scenario = scenario.with_options(memory__keep=False)
    case = type(case)(case.row, scenario)
    aborts = (*case.scenario.aborts, *_while_suspended(seen))
    requests = [_moved(request, FIRST_S) for request in case.requests]
    again = [_moved(request, SECOND_S, AGAIN) for request in case.requests]
    tokens = {(mark + name, at): token for (name, at), token in seen.tokens.items() for mark in ("", AGAIN)}

    def served(these: Sequence[Request], aborts: Sequence[tuple[int, str]]) -> Observation:
        lives = case.with_requests(tuple(these), tuple(aborts))
        return observe(lives, run=case.replay(tokens), cost=lambda plan: SECONDS)

    once = served(requests, aborts)
    kept = once.usage_at_end
    if kept is None or kept.kept or kept.kept_on_host or any(step.ended_s > SECOND_S for step in once.steps):
        return
    after = len(once.steps)
    both = served([*requests, *again], [*aborts, *((after + steps, AGAIN + name) for steps, name in aborts)])
    nothing: dict[str, Any] = {}
    lives = zip_longest(_decided(both, after), _decided(once, 0), fillvalue=nothing)
    for number, (found, expected) in enumerate(lives, after + 1):
        for what in expected or found:
            if found.get(what) != expected.get(what):
                moment = (expected or found)["at"]
                told = f"at {moment} s, {what} is {brief(expected.get(what))}, and again {brief(found.get(what))}"
                hint = "a place, blocks or KV were not given back or not counted, or a stage `remembers`"
                broken = LawBroken("second life", f"{told}: {hint}")
                broken.seen = both.until(number)
                raise broken


def _while_suspended(seen: Observation) -> Iterator[tuple[int, str]]:
    """Yield aborts of suspended requests, each after the step that evicted the request."""
    evicted = [(number, name) for number, step in enumerate(seen.steps, 1) for name in step.plan.evicted]
    yield from evicted[:MOST_ABORTS]


def _moved(request: Request, later_s: float, mark: str = "") -> Request:
    """Return a copy of a request that arrives `later_s` later, under another name."""
    return replace(
        request,
        id=mark + request.id,
        arrival_s=later_s + request.arrival_s,
        group=request.group and mark + request.group,
        conversation=request.conversation and mark + request.conversation,
        after=request.after and mark + request.after,
    )


def _decided(seen: Observation, after: int) -> Iterator[dict[str, Any]]:
    """Yield the decisions of each plan from number `after` on.

    Slots are left out, because the order of free slots may differ.
    """
    plans = list(seen.plans.values())[after:]
    first_s = seen.submitted_s[plans[0].step] if plans else 0.0
    for plan in plans:
        moved: Counter[tuple[Any, ...]] = Counter()
        for move in plan.moves:
            moved[move.kind, move.moment, move.wave] += move.num_tokens
        yield {
            "at": round(seen.submitted_s[plan.step] - first_s, 9),
            "worker": plan.worker,
            "work": [(_name(work.sequence), *work[1:]) for work in plan.work],
            "admitted": [*map(_name, plan.admitted)],
            "evicted": [*map(_name, plan.evicted)],
            "reused": [(_name(one.sequence), *one[1:]) for one in map(Reuse._make, plan.reused)],
            "computed": plan.num_computed,
            "moved": dict(moved),
            "waves": plan.waves,
            "reasons": [(reason.code, _name(reason.sequence)) for reason in plan.reasons],
        }


def _name(name: str) -> str:
    return name.removeprefix(AGAIN)
