"""Law "time": a plan takes what it costs, and waits for its own copies."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from minifuse.core.errors import LawBroken
from minifuse.core.measured import measured_of
from minifuse.core.report import StepReport
from minifuse.execute.link import Link
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case


def check_time(case: Case, seen: Observation) -> None:
    """Check that a plan takes the seconds that it costs.

    While k plans run on a shared device, each runs at 1/k of the device's speed.
    """
    steps = [step for step in seen.steps if step.plan.work]
    served = dict.fromkeys((step.plan.step for step in steps), 0.0)
    begins = deque(sorted(steps, key=lambda step: step.started_s))
    running: dict[int, float] = {}  # step -> when it ends
    for start, stop in pairwise(sorted({moment for step in steps for moment in (step.started_s, step.ended_s)})):
        while begins and begins[0].started_s <= start:
            begun = begins.popleft()
            running[begun.plan.step] = begun.ended_s
        running = {number: ended_s for number, ended_s in running.items() if ended_s >= stop}
        for number in running:
            served[number] += (stop - start) / (len(running) if case.scenario.shared else 1)
    for step in steps:
        costs = seen.costs[step.plan.step] + measured_of(step).exposed_s
        if abs(served[step.plan.step] - costs) > 1e-9:
            raise LawBroken("time", f"step {step.plan.step} costs {costs} s, and got {served[step.plan.step]} s")
    if len({step.plan.worker for step in steps}) == 1:  # else other workers may be using the link
        memory = case.stages().memory
        _check_waits(case.link(memory), seen, steps)


def _check_waits(link: Link, seen: Observation, steps: list[StepReport]) -> None:
    """Check that a plan waits only for its own copies.

    A plan may also wait for one copy, made ahead of time, that was already in flight.
    """
    ahead = (move for plan in seen.plans.values() if not plan.work for move in plan.moves)
    begun_s = max((link.seconds([move]) for move in ahead), default=0.0)
    for step in steps:
        plan, costs = step.plan, seen.costs[step.plan.step]
        longest_s = link.seconds(plan.moves)
        if len(plan.waves) == 1 and all(move.moment == "before" for move in plan.moves if move.crosses):
            # Layer i of L waits for its own copies: see the formula of `Link`.
            longest_s = max(longest_s / link.num_layers, longest_s + costs / link.num_layers - costs)
        if measured_of(step).exposed_s > longest_s + begun_s + 1e-9:
            waited = f"step {plan.step} waits {measured_of(step).exposed_s} s for the link"
            raise LawBroken("time", f"{waited}, and its own copies take {longest_s} s more than its computing hides")
