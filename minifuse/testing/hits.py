"""Whether KV that is kept, or shared, is ever found: no law says of every memory that it must be."""

from __future__ import annotations

from minifuse.testing.observation import Observation

__all__ = ["finds", "keeps"]


def keeps(seen: Observation) -> bool:
    """Whether memory kept KV for later requests, or has the option `share`, and it is on."""
    usages = [step.usage for step in seen.steps]
    return bool(seen.case.settings.get("memory.share")) or any(usage.kept or usage.kept_on_host for usage in usages)


def finds(seen: Observation) -> bool:
    """Whether a newcomer found KV. What an evicted sequence finds is its own."""
    evicted: set[str] = set()
    for plan in seen.plans.values():
        if any(one.sequence not in evicted for one in plan.reused):
            return True
        evicted.update(plan.evicted)
    return False
