"""Who follows the loop: what checks it, watches over it, or tells of it."""

from __future__ import annotations

from minifuse.core.plan import Placement, Plan, Proposal
from minifuse.core.report import StepReport
from minifuse.core.requests import Requests


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

    def planned(self, plan: Plan, placement: Placement) -> None:
        """Attention has laid out what was placed; or memory has asked for moves behind everything, perhaps for none."""

    def completed(self, report: StepReport, requests: Requests) -> None:
        """A plan has completed, and its tokens are written down."""

    def woke(self, in_vain: bool, running: bool) -> None:
        """A wait has ended; `in_vain`: only because a policy asked for it."""
