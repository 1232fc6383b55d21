"""Counts how often requests find KV that memory keeps or shares."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.core.places import Reuse
from minifuse.testing.observation import Observation


@dataclass
class Hits:
    """Records what the scenarios of one mix showed about its memory."""

    kept: bool = False  # memory kept KV for later requests, or may share KV
    found: bool = False  # a newcomer found KV in memory
    left: int = 0  # runs after which memory still kept KV; the law "second life" skips these runs
    runs: int = 0

    def note(self, seen: Observation) -> None:
        """Count a run."""
        usages = [step.usage for step in seen.steps]
        keeps = any(usage.kept or usage.kept_on_host for usage in usages)
        self.kept = self.kept or keeps or bool(seen.case.settings.get("memory.share"))
        self.found = self.found or _finds(seen)
        end = seen.usage_at_end
        self.left += end is not None and end.kept + end.kept_on_host > 0
        self.runs += 1


def _finds(seen: Observation) -> bool:
    """Return whether a newcomer found KV. Evicted sequences, which find their own, do not count."""
    evicted: set[str] = set()
    for plan in seen.plans.values():
        if any(one.sequence not in evicted for one in map(Reuse._make, plan.reused)):
            return True
        evicted.update(plan.evicted)
    return False
