"""Observers of a run: of its loop, and of its requests."""

from __future__ import annotations

from functools import partial
from typing import Any

from minifuse.core.plan import Proposal
from minifuse.core.request import Request
from minifuse.core.requests import Observer, Requests

EVENTS = ("requested", "refused", "aborted", "proposed", "placed", "planned", "completed", "waited")


class RunObserver(Observer):
    """Follows requests, too. Times are in seconds."""

    def requested(self, request: Request, num_history: int = 0, *, measured: bool = False) -> None:
        """A request was submitted, or a later turn arrived; `measured`: later than asked for."""

    def refused(self, request_id: str, why: str, received: bool = False) -> None:
        """A request was refused: at submission, or after it had arrived if `received`."""

    def aborted(self, request_id: str, end_s: float) -> None:
        """A request was aborted."""


class Observers(RunObserver):
    """Tells observers of each event, in their order; each only of the events it overrides."""

    def __init__(self, *observers: Observer) -> None:
        for event in EVENTS:
            ignored = getattr(RunObserver, event)
            told = [getattr(one, event) for one in observers if getattr(type(one), event, ignored) is not ignored]
            tell = _proposed if event == "proposed" else _tell
            if told:  # mostly one, which is called as if it were alone: an iteration has many events
                setattr(self, event, told[0] if len(told) == 1 else partial(tell, told))


def _tell(listeners: list[Any], *event: Any, **more: Any) -> None:
    for listener in listeners:
        listener(*event, **more)


def _proposed(listeners: list[Any], worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
    for listener in listeners:
        proposal = listener(worker, proposal, requests)
    return proposal
