"""The value of a chunk: its recomputation cost over its idle time (Pensieve, 3.4.3.1)."""

from __future__ import annotations

import math
from typing import Protocol

from minifuse.memory.tiered.profile import Profile


class Eviction(Protocol):
    """An eviction policy: chunks of least value are evicted first."""

    def value(self, num_context: int, idle_s: float) -> float:
        """Return the value of a chunk that has been idle for `idle_s`.

        Args:
            num_context: tokens of the text up to the end of the chunk.
        """
        ...


class CostAware:
    """Value = Cost(l) / T (3.4): the profile's recomputation cost (3.6) over the idle time.

    The later a chunk lies in its text, the more tokens it attends to: so the start of a conversation is evicted first.

    >>> # of chunks idle equally long, the smaller context goes first; of equal contexts, the one idle for longer
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._costs: dict[int, float] = {}  # length of context -> cost, kept because every eviction needs it

    def value(self, num_context: int, idle_s: float) -> float:
        if num_context not in self._costs:
            self._costs[num_context] = self.profile.cost(num_context)
        return self._costs[num_context] / idle_s if idle_s > 0 else math.inf


class LeastRecentlyUsed:
    """Values a chunk by the time since its last use only: the thesis' baseline (3.6.3)."""

    def value(self, num_context: int, idle_s: float) -> float:
        return -idle_s
