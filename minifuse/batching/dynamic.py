"""Dynamic batching: wait a time window for requests, then run to completion (Flover, III)."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.static import Static, run_to_completion
from minifuse.core.plan import Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import option


class Dynamic(QueuePolicy):
    """Starts a batch once max_batch requests wait, or the oldest has waited for the window.

    The window opens when the oldest waiting request arrives, so time spent behind a running batch counts. A batch runs
    to completion, as under `static`.
    """

    name = "dynamic"
    in_step = True

    @dataclass(frozen=True)
    class Options(Static.Options):
        window: float = option(0.5, "how long the oldest request waits for others", minimum=0.0, unit="s")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.arrived: deque[Sequence] = deque()  # the oldest waiting request, and all later arrivals

    def receive(self, sequence: Sequence) -> None:
        super().receive(sequence)
        self.arrived.append(sequence)

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        closes = self._window_closes()
        if not self.running and now < closes and len(self.waiting) < self.options.max_batch:
            window = f"the window of {self.options.window:g} s closes at {closes:.3f} s"
            return Reason("window-open", sequence.id, f"not admitted: {len(self.waiting)} wait and {window}")
        return run_to_completion(self, sequence, joining, now)

    def wake_at(self, now: float) -> float | None:
        closes = self._window_closes()
        return closes if closes > now else None

    def _window_closes(self) -> float:
        while self.arrived and self.arrived[0].id not in self.waiting:
            self.arrived.popleft()
        if not self.arrived:
            return 0.0  # only evicted sequences wait, if any: their window has passed
        return float(self.arrived[0].request.arrival_s + self.options.window)
