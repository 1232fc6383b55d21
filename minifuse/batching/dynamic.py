"""Dynamic batching: wait a time window for more requests, then run the batch to completion (Flover, III)."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.batching.static import Static
from minifuse.options import option
from minifuse.plan import Reason
from minifuse.request import Sequence
from minifuse.stages import register

__all__ = ["Dynamic"]


@register
class Dynamic(Static):
    """A batch starts when max_batch requests wait or the first of them has waited for the window; then as static.

    The window opens with the oldest waiting request's arrival: time spent behind a running batch counts.
    """

    name = "dynamic"

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one batch, at most", minimum=1, batch_size=True)
        window: float = option(0.5, "how long the first request waits for others", minimum=0.0, unit="s")

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        closes = self._window_closes()
        if not self.running and now < closes and len(self.waiting) < self.options.max_batch:
            window = f"the window of {self.options.window:g} s closes at {closes:.3f} s"
            return Reason("window-open", sequence.id, f"not admitted: {len(self.waiting)} wait and {window}")
        return super().admission(sequence, joining, now)

    def wake_at(self, now: float) -> float | None:
        closes = self._window_closes() if self.waiting else now
        return closes if closes > now else None

    def _window_closes(self) -> float:
        first: Sequence = next(iter(self.waiting.values()))
        closes: float = first.request.arrival_s + self.options.window
        return closes
