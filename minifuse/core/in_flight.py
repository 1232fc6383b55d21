"""The plans in flight: when they were submitted, and whose memory waits for them."""

from collections.abc import Set
from typing import NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.request import Sequence


class Running(NamedTuple):
    """A plan in flight."""

    worker: int
    submitted_s: float
    sequences: Set[str]  # sequences that have work in the plan, or are admitted by it


class InFlight:
    """Keeps the plans that were submitted and have not completed, up to `depth` per worker."""

    def __init__(self, workers: int, depth: int) -> None:
        self.depth = depth
        self.num_launched = 0  # plans submitted since the run began
        self.running: dict[int, Running] = {}  # step -> plan
        self.num_running = [0] * workers  # each worker's plans in flight
        self.leaving: dict[str, Sequence] = {}  # finished; their memory is freed once no plan in flight uses it
        self._last_ended = [0.0] * workers  # when each worker last completed a plan

    def __bool__(self) -> bool:
        return bool(self.running)

    def has_room(self, worker: int) -> bool:
        """Return whether a worker can take another plan."""
        return self.num_running[worker] < self.depth

    def using(self, name: str) -> list[Running]:
        """Return the plans in flight that use a sequence."""
        return [plan for plan in self.running.values() if name in plan.sequences]

    def launch(self, plan: Plan, working: Set[str], now: float) -> None:
        """Add a plan that is about to be submitted, with work on these sequences."""
        sequences = {*working, *plan.admitted} if plan.admitted else working
        self.num_launched += 1
        self.num_running[plan.worker] += 1
        self.running[plan.step] = Running(plan.worker, now, sequences)

    def land(self, plan: Plan, ended_s: float) -> tuple[float, list[Sequence]]:
        """Remove a completed plan. Returns its start time, and the finished sequences to free now."""
        worker, submitted_s, _ = self.running.pop(plan.step)
        self.num_running[worker] -= 1
        started_s = max(submitted_s, self._last_ended[worker])
        self._last_ended[worker] = ended_s
        freed = [name for name in self.leaving if not self.using(name)]
        return started_s, [self.leaving.pop(name) for name in freed]

    def clear(self) -> None:
        """Drop all plans: none will complete."""
        self.running.clear()
        self.num_running = [0] * len(self.num_running)
