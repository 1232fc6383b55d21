"""The plans in flight: their workers, their sequences, and whose memory waits."""

from collections.abc import Collection

from minifuse.core.plan import Plan
from minifuse.core.request import Sequence


class InFlight:
    """Keeps the plans that were submitted and have not completed, up to `depth` a worker.

    A sequence that finishes while plans in flight still touch its memory is `leaving`: its memory is free when the last
    of them has landed.
    """

    def __init__(self, workers: int, depth: int) -> None:
        self.depth = depth
        self.num_launched = 0  # plans since the run began
        self.num_plans = [0] * workers  # of each worker
        self.leaving: dict[str, Sequence] = {}
        self._started: dict[int, tuple[float, Collection[str]]] = {}  # step -> when it was submitted, its sequences
        self._last_ended = [0.0] * workers  # when each worker last completed a plan
        self.workers: dict[str, list[int]] = {}  # sequence -> the worker of each of its plans in flight

    def __bool__(self) -> bool:
        return bool(self._started)

    def has_room(self, worker: int) -> bool:
        """Whether a worker can take another plan."""
        return self.num_plans[worker] < self.depth

    def launch(self, plan: Plan, sequences: Collection[str], now: float) -> None:
        """A plan with work of these sequences is about to be submitted, at time `now`."""
        if plan.admitted:  # perhaps without work, as in a group that is pre-processed together
            sequences = {*sequences, *plan.admitted}
        self.num_launched += 1
        self.num_plans[plan.worker] += 1
        self._started[plan.step] = now, sequences
        for name in sequences:
            self.workers.setdefault(name, []).append(plan.worker)

    def land(self, plan: Plan, ended_s: float) -> tuple[float, list[Sequence]]:
        """Complete a plan. Returns its start, and the leaving sequences to free now."""
        submitted_s, sequences = self._started.pop(plan.step)
        started_s = max(submitted_s, self._last_ended[plan.worker])
        self._last_ended[plan.worker] = ended_s
        self.num_plans[plan.worker] -= 1
        freed = []
        for name in sequences:
            workers = self.workers[name]
            workers.remove(plan.worker)
            if not workers:
                del self.workers[name]
                if name in self.leaving:
                    freed.append(self.leaving.pop(name))
        return started_s, freed

    def leave(self, sequence: Sequence) -> bool:
        """A sequence has finished. Returns whether its memory must wait for plans in flight."""
        if sequence.id not in self.workers:
            return False
        self.leaving[sequence.id] = sequence
        return True

    def clear(self) -> None:
        """No plan runs any more."""
        self.num_plans = [0] * len(self.num_plans)
        self._started.clear()
        self.workers.clear()
