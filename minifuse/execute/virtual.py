"""Plans run in virtual time: a cost model says how long each takes, whatever the machine does meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from minifuse.clock import VirtualClock
from minifuse.execute.real import RunPlan
from minifuse.plan import Completion, Plan, sampled_work
from minifuse.request import Sequence

__all__ = ["VirtualExecutor", "placeholder_tokens"]


def placeholder_tokens(plan: Plan, sequences: dict[str, Sequence]) -> dict[str, int]:
    """A token for everyone who is due one, without a model: -1, which no stop rule knows."""
    return {plan.work[i].sequence: -1 for i in sampled_work(plan, sequences)}


class VirtualExecutor:
    """`cost` gives a plan's seconds, `run` its tokens (a model's, or placeholders); batching and memory cannot tell."""

    def __init__(self, clock: VirtualClock, cost: Callable[[Plan], float], run: RunPlan = placeholder_tokens) -> None:
        self._clock = clock
        self._cost = cost
        self._run = run
        self._running: list[tuple[float, int, Completion]] = []  # a heap by end, then step

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self._push(Completion(plan, self._run(plan, sequences), now + self._cost(plan)))

    def _push(self, completion: Completion) -> None:
        """Let a plan complete at its time."""
        heapq.heappush(self._running, (completion.ended_s, completion.plan.step, completion))

    def wait(self, until: float | None) -> list[Completion]:
        if self._running and (until is None or self._running[0][0] <= until):
            end = self._running[0][0]
            self._clock.sleep_until(end)
            done = []
            while self._running and self._running[0][0] == end:
                done.append(heapq.heappop(self._running)[2])
            return done
        if until is not None:
            self._clock.sleep_until(until)
        return []

    def close(self) -> None:
        """Nothing to stop."""
