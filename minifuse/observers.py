"""Observers of the loop, and the watchdog, which every engine has."""

from __future__ import annotations

from typing import Any

from minifuse.errors import LawBroken
from minifuse.layout import Layout
from minifuse.plan import Move, Placement, Proposal
from minifuse.report import StepReport
from minifuse.requests import Requests

__all__ = ["Observer", "Observers", "Watchdog"]

IN_VAIN = 1_000  # wakes in a row while nothing runs: more patience than any wait takes
BESIDE_PLANS = 100_000  # while plans run, which it may look at often


class Observer:
    """Follows the loop. What it raises ends the run."""

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        """A policy has proposed; `worker` None: nothing runs until `proposal.wake_at`.

        Returns:
            The proposal to place, perhaps with more reasons.
        """
        return proposal

    def placed(self, proposal: Proposal, placement: Placement, requests: Requests) -> None:
        """Memory has placed a proposal."""

    def laid_out(self, proposal: Proposal, placement: Placement, layout: Layout) -> None:
        """Attention has laid out what was placed."""

    def moved_ahead(self, moves: tuple[Move, ...]) -> None:
        """Memory has asked for transfers behind everything, perhaps for none."""

    def completed(self, report: StepReport, requests: Requests) -> None:
        """A plan has completed, and its tokens are written down."""

    def woke(self, in_vain: bool, running: bool) -> None:
        """A wait has ended; `in_vain`: only because a policy asked for it."""


class Observers(Observer):
    """Several observers, told in their order; each only of what it listens to."""

    def __init__(self, *observers: Observer) -> None:
        def listeners(event: str) -> list[Any]:
            ignored = getattr(Observer, event)
            return [getattr(one, event) for one in observers if getattr(type(one), event) is not ignored]

        self._proposed = listeners("proposed")
        self._placed = listeners("placed")
        self._laid_out = listeners("laid_out")
        self._moved_ahead = listeners("moved_ahead")
        self._completed = listeners("completed")
        self._woke = listeners("woke")

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        for tell in self._proposed:
            proposal = tell(worker, proposal, requests)
        return proposal

    def placed(self, proposal: Proposal, placement: Placement, requests: Requests) -> None:
        for tell in self._placed:
            tell(proposal, placement, requests)

    def laid_out(self, proposal: Proposal, placement: Placement, layout: Layout) -> None:
        for tell in self._laid_out:
            tell(proposal, placement, layout)

    def moved_ahead(self, moves: tuple[Move, ...]) -> None:
        for tell in self._moved_ahead:
            tell(moves)

    def completed(self, report: StepReport, requests: Requests) -> None:
        for tell in self._completed:
            tell(report, requests)

    def woke(self, in_vain: bool, running: bool) -> None:
        for tell in self._woke:
            tell(in_vain, running)


class Watchdog(Observer):
    """Ends a run without progress: nothing can happen, or the policy wakes itself forever.

    A wait has one end that can be foreseen: the moment at which a window closes, or a priority is due. A policy that is
    woken a thousand times, and nothing has arrived, run or ended in between, waits for nothing.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0  # in a row, in vain

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        if worker is None and (proposal.wake_at is None or proposal.wake_at <= requests.now):
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
