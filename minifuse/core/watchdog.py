"""Ends a run whose policy wakes itself forever."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Reason
from minifuse.core.requests import Observer, Requests

IN_VAIN = 1_000  # wakes in a row while nothing runs: more patience than any wait takes
BESIDE_PLANS = 100_000  # while plans run, which it may look at often


class Watchdog(Observer):
    """Ends a run whose policy is woken a thousand times while nothing arrives, runs or ends.

    A wait has one end that can be foreseen: the moment at which a window closes, or a priority is due.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0  # in a row, in vain

    def waited(self, reasons: Iterable[Reason], end_s: float, in_vain: bool, requests: Requests) -> None:
        self.num_wakes = self.num_wakes + 1 if in_vain else 0
        if self.num_wakes >= (BESIDE_PLANS if requests.in_flight else IN_VAIN):
            raise LawBroken(
                "progress",
                f"the batching policy {self.policy!r} has woken itself {self.num_wakes:,} times in a row and proposed "
                "no work: give as wake_at the time at which it will have some, or leave wake_at out and wait for an "
                "arrival or a completion",
            )
