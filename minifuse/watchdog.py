"""Ends a run whose batching policy asks to be woken again and again, and never proposes any work."""

from __future__ import annotations

from minifuse.errors import LawBroken

__all__ = ["Watchdog"]

IN_VAIN = 1_000  # wakes in a row while nothing runs: more patience than any wait takes
BESIDE_PLANS = 100_000  # while plans run, which it may look at often


class Watchdog:
    """Counts the wakes that a policy asked for (`Proposal.wake_at`) since anything else has happened.

    A wait has one end that can be foreseen: the moment at which a window closes, or a priority is due. A policy that is
    woken a thousand times, and nothing has arrived, run or ended in between, waits for nothing.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0

    def woke(self, *, running: bool) -> None:
        """The policy was woken, and nothing else had happened; `running`: plans are in flight.

        Raises:
            LawBroken: once too often.
        """
        self.num_wakes += 1
        if self.num_wakes >= (BESIDE_PLANS if running else IN_VAIN):
            raise LawBroken(
                "progress",
                f"the batching policy {self.policy!r} has woken itself {self.num_wakes:,} times in a row and proposed "
                "no work: give as wake_at the time at which it will have some, or leave wake_at out and wait for an "
                "arrival or a completion",
            )

    def happened(self) -> None:
        """Something else has: an arrival, or a completion."""
        self.num_wakes = 0
