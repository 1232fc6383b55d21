"""The value of a chunk: its recomputation cost over its idle time (Pensieve, 3.4.3.1)."""

from __future__ import annotations

import math
from typing import Protocol

from minifuse.memory.tiered.profile import Profile


class Eviction(Protocol):
    """A policy of eviction: chunks of the least value go first."""

    def value(self, num_context: int, idle_s: float) -> float:
        """Return the value of a chunk that ends after `num_context` tokens, idle for `idle_s`."""
        ...


class CostAware:
    """Value = Cost(l) / T (3.4), where a profile gives Cost(l) (3.6).

    The later a chunk lies in its text, the more tokens it attends to: so the leading end of a conversation goes first.

    >>> # of chunks idle equally long, the smaller context goes first; of equal contexts, the one idle for longer
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._costs: dict[int, float] = {}  # by length of context: every eviction asks for them

    def value(self, num_context: int, idle_s: float) -> float:
        if num_context not in self._costs:
            self._costs[num_context] = self.profile.cost(num_context)
        return self._costs[num_context] / idle_s if idle_s > 0 else math.inf


class LeastRecentlyUsed:
    """Only the time since the last use counts: the thesis' baseline (3.6.3)."""

    def value(self, num_context: int, idle_s: float) -> float:
        return -idle_s
