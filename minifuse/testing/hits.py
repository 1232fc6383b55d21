"""Count how often requests find KV that memory keeps or shares. No law demands a hit."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.places import Reuse
from minifuse.testing.observation import Observation


class Hits(NamedTuple):
    """What the scenarios of one mix showed of its memory."""

    kept: bool  # it kept KV for later requests, or shares it
    found: bool  # a newcomer found some
    left: int  # runs at whose end it kept KV: second life compares none of them
    runs: int


def keeps(seen: Observation) -> bool:
    """Whether memory kept KV for later requests, or has the option `share`, and it is on."""
    usages = [step.usage for step in seen.steps]
    return bool(seen.case.settings.get("memory.share")) or any(usage.kept or usage.kept_on_host for usage in usages)


def finds(seen: Observation) -> bool:
    """Whether a newcomer found KV. What an evicted sequence finds is its own."""
    evicted: set[str] = set()
    for plan in seen.plans.values():
        if any(one.sequence not in evicted for one in map(Reuse._make, plan.reused)):
            return True
        evicted.update(plan.evicted)
    return False
