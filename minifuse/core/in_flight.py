"""The plans in flight: when they were submitted, and whose memory waits for them."""

from collections.abc import Iterator, Set
from itertools import chain
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.request import Sequence


class Running(NamedTuple):
    """A plan in flight."""

    plan: Plan
    submitted_s: float
    sequences: Set[str]  # that it works on, or admits without work (a prompt of one token, beside its group)


class InFlight:
    """Keeps the plans that were submitted and have not completed, up to `depth` a worker."""

    def __init__(self, workers: int, depth: int) -> None:
        self.depth = depth
        self.num_launched = 0  # plans since the run began
        self.running: list[dict[int, Running]] = [{} for _ in range(workers)]  # of each worker, by step
        self.leaving: dict[str, Sequence] = {}  # finished; their memory is freed when no plan in flight uses it
        self._last_ended = [0.0] * workers  # when each worker last completed a plan

    def __bool__(self) -> bool:
        return any(self.running)

    def __iter__(self) -> Iterator[Running]:
        return chain.from_iterable([plans.values() for plans in self.running])

    def workers_of(self, name: str) -> list[int]:
        """Return the worker of each plan in flight that uses a sequence."""
        return [running.plan.worker for running in self if name in running.sequences]

    def has_room(self, worker: int) -> bool:
        """Whether a worker can take another plan."""
        return len(self.running[worker]) < self.depth

    def launch(self, plan: Plan, now: float) -> None:
        """Add a plan, which is about to be submitted."""
        self.num_launched += 1
        self.running[plan.worker][plan.step] = Running(plan, now, {*plan.sequences, *plan.admitted})

    def land(self, plan: Plan, ended_s: float) -> tuple[float, list[Sequence]]:
        """Remove a completed plan. Returns its start, and the leaving sequences to free now."""
        started_s = max(self.running[plan.worker].pop(plan.step).submitted_s, self._last_ended[plan.worker])
        self._last_ended[plan.worker] = ended_s
        freed = [name for name in self.leaving if not self.workers_of(name)]
        return started_s, [self.leaving.pop(name) for name in freed]
