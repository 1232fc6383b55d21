"""Observers of a run: of its loop, and of its requests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Request
from minifuse.core.requests import Observer, Requests

IN_VAIN = 1_000  # wakes in a row while nothing runs: more than any sensible wait takes
BESIDE_PLANS = 100_000  # wakes in a row while plans run: a policy may look at them often
EVENTS = ("requested", "refused", "aborted", "proposed", "placed", "planned", "completed", "waited")


class RunObserver(Observer):
    """An observer that follows requests, too. Times are in seconds."""

    def requested(self, request: Request, num_history: int = 0, *, measured: bool = False) -> None:
        """Record a submitted request or an arrived turn. `measured`: its arrival time was not given."""

    def refused(self, request_id: str, why: str, received: bool = False) -> None:
        """Record a refusal: on arrival if `received`, otherwise at submission."""

    def aborted(self, request_id: str, end_s: float) -> None:
        """Record that a request was aborted."""


class Observers(RunObserver):
    """Passes each event to the observers that override its method, in the given order."""

    def __init__(self, *observers: Observer) -> None:
        for event in EVENTS:
            ignored = getattr(RunObserver, event)
            told = [getattr(one, event) for one in observers if getattr(type(one), event, ignored) is not ignored]
            tell = _proposed if event == "proposed" else _tell
            if told:  # usually a single observer, called directly: an iteration has many events
                setattr(self, event, told[0] if len(told) == 1 else partial(tell, told))


def _tell(listeners: list[Any], *event: Any, **more: Any) -> None:
    for listener in listeners:
        listener(*event, **more)


def _proposed(listeners: list[Any], worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
    for listener in listeners:
        proposal = listener(worker, proposal, requests)
    return proposal


class Watchdog(Observer):
    """Ends a run whose policy keeps waking itself and never proposes work.

    The limits are generous: a policy knows when its window closes, so one wake is enough to end a wait.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.num_wakes = 0  # in a row, each without work to propose

    def waited(self, reasons: Iterable[Reason], end_s: float, in_vain: bool, requests: Requests) -> None:
        self.num_wakes = self.num_wakes + 1 if in_vain else 0
        if self.num_wakes >= (BESIDE_PLANS if requests.in_flight else IN_VAIN):
            raise LawBroken(
                "progress",
                f"the batching policy {self.policy!r} has woken itself {self.num_wakes:,} times in a row and proposed "
                "no work: give as wake_at the time at which it will have some, or leave wake_at out and wait for an "
                "arrival or a completion",
            )
