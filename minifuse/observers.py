"""What follows the loop: observers, and the one that every engine has, the watchdog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from minifuse.errors import LawBroken
from minifuse.plan import Proposal, Reason
from minifuse.report import Completion
from minifuse.request import Sequence

__all__ = ["Observer", "Wait", "Watchdog"]

IN_VAIN = 1_000  # wakes in a row while nothing runs: more patience than any wait takes
BESIDE_PLANS = 100_000  # while plans run, which it may look at often


class Wait(NamedTuple):
    """The loop waits for the next event."""

    begin_s: float
    until_s: float | None  # the next arrival, or the earliest `wake_at`; None: only a completion can come
    running: bool  # plans are in flight
    reasons: tuple[Reason, ...]  # why no more of them are

    @classmethod
    def after(cls, idle: Iterable[Proposal], now: float, arrives_s: float | None, running: bool) -> Wait:
        """The wait after proposals without work; the next request arrives at `arrives_s`."""
        times = [arrives_s, *(proposal.wake_at for proposal in idle)]
        until_s = min((time for time in times if time is not None), default=None)
        reasons = tuple(dict.fromkeys(reason for proposal in idle for reason in proposal.reasons))
        return cls(now, until_s, running, reasons)

    def ended_s(self, completions: list[Completion], now: float) -> float:
        """The time of the event that ended it; `now` is when the host woke up, on which no decision may depend."""
        if completions:
            return completions[-1].ended_s
        return now if self.until_s is None else min(now, self.until_s)


class Observer:
    """Follows the loop. It may add reasons to what it is shown, and what it raises ends the run."""

    def proposed(self, worker: int, proposal: Proposal, sequences: Iterable[Sequence]) -> Proposal:
        """A policy proposed work; `sequences` are all that have not ended. Returns what is to be placed."""
        return proposal

    def waits(self, wait: Wait, sequences: Iterable[Sequence]) -> Wait:
        """The loop is about to wait. Returns what the trace is to tell of it."""
        return wait

    def woke(self, wait: Wait, in_vain: bool) -> None:
        """The wait has ended; `in_vain`: because the policy asked for it, and nothing has happened."""


class Watchdog(Observer):
    """Ends a run that makes no progress: nothing can happen, or the policy wakes itself for ever.

    A wait has one end that can be foreseen: the moment at which a window closes, or a priority is due. A policy that is
    woken a thousand times, and nothing has arrived, run or ended in between, waits for nothing.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0  # in a row, in vain

    def waits(self, wait: Wait, sequences: Iterable[Sequence]) -> Wait:
        if not wait.running and (wait.until_s is None or wait.until_s <= wait.begin_s):
            why = "; ".join(map(str, wait.reasons)) or "the batching policy proposed no work and gave no reason."
            raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        return wait

    def woke(self, wait: Wait, in_vain: bool) -> None:
        self.num_wakes = self.num_wakes + 1 if in_vain else 0
        if self.num_wakes >= (BESIDE_PLANS if wait.running else IN_VAIN):
            raise LawBroken(
                "progress",
                f"the batching policy {self.policy!r} has woken itself {self.num_wakes:,} times in a row and proposed "
                "no work: give as wake_at the time at which it will have some, or leave wake_at out and wait for an "
                "arrival or a completion",
            )
