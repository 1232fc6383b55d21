"""No cache: every iteration computes the whole text again."""

from __future__ import annotations

from collections.abc import Collection

from minifuse.memory.contiguous import Contiguous
from minifuse.plan import Plan
from minifuse.stages import register

__all__ = ["Recompute"]


@register
class Recompute(Contiguous):
    """Nothing is remembered once a token is sampled: the next one computes the whole text again."""

    name = "recompute"

    def commit(self, plan: Plan, sampled: Collection[str]) -> None:
        super().commit(plan, sampled)
        for name in sampled:
            self.cached[name] = 0
