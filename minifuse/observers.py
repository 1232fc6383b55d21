"""Observers of the loop, and the watchdog, which every engine has."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.errors import LawBroken
from minifuse.plan import Proposal
from minifuse.request import Sequence

__all__ = ["Observer", "Watchdog"]

IN_VAIN = 1_000  # wakes in a row while nothing runs: more patience than any wait takes
BESIDE_PLANS = 100_000  # while plans run, which it may look at often


class Observer:
    """Follows the loop. What it raises ends the run."""

    def proposed(self, worker: int | None, proposal: Proposal, now: float, sequences: Iterable[Sequence]) -> Proposal:
        """Work is proposed for a worker; if that is None, nothing runs, and the loop waits until `proposal.wake_at`.

        Args:
            sequences: all that were received and have not ended.

        Returns:
            The proposal to place, perhaps with more reasons.
        """
        return proposal

    def woke(self, in_vain: bool, running: bool) -> None:
        """A wait has ended. `in_vain`: a policy asked to be woken, and nothing else happened; `running`: plans are."""


class Watchdog(Observer):
    """Ends a run that makes no progress: nothing can happen, or the policy wakes itself for ever.

    A wait has one end that can be foreseen: the moment at which a window closes, or a priority is due. A policy that is
    woken a thousand times, and nothing has arrived, run or ended in between, waits for nothing.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0  # in a row, in vain

    def proposed(self, worker: int | None, proposal: Proposal, now: float, sequences: Iterable[Sequence]) -> Proposal:
        if worker is None and (proposal.wake_at is None or proposal.wake_at <= now):
            why = "; ".join(map(str, proposal.reasons)) or "the batching policy proposed no work and gave no reason."
            raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        return proposal

    def woke(self, in_vain: bool, running: bool) -> None:
        self.num_wakes = self.num_wakes + 1 if in_vain else 0
        if self.num_wakes >= (BESIDE_PLANS if running else IN_VAIN):
            raise LawBroken(
                "progress",
                f"the batching policy {self.policy!r} has woken itself {self.num_wakes:,} times in a row and proposed "
                "no work: give as wake_at the time at which it will have some, or leave wake_at out and wait for an "
                "arrival or a completion",
            )
