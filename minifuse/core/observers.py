"""Observers of a run: of its loop, and of its requests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from minifuse.core.plan import Proposal
from minifuse.core.request import Request, Sequence
from minifuse.core.requests import Observer, Requests

__all__ = ["Observers", "RunObserver"]

EVENTS = ("requested", "refused", "aborted", "placed", "planned", "completed", "waited", "woke", "ended")


class RunObserver(Observer):
    """Follows requests, too, and is told of a run's end. Times are in seconds."""

    def requested(self, request: Request, num_history: int = 0, *, measured: bool = False) -> None:
        """A request was submitted or, if it follows another, arrived; `measured`: later than was asked for."""

    def refused(self, request_id: str, why: str, received: bool = False) -> None:
        """A request was refused: when it was submitted, or, if `received`, after it had arrived."""

    def aborted(self, request_id: str, end_s: float) -> None:
        """A request was aborted."""

    def ended(self, unfinished: Iterable[str], end_s: float, finished: Iterable[Sequence]) -> None:
        """The run has ended; `finished` are all requests that have, in the order in which they did."""


class Observers(RunObserver):
    """Tells several observers of each event, in their order; each only of what it listens to."""

    def __init__(self, *observers: Observer) -> None:
        for event in EVENTS:
            setattr(self, event, partial(_tell, self._listeners(observers, event)))
        self._proposed = self._listeners(observers, "proposed")

    @staticmethod
    def _listeners(observers: tuple[Observer, ...], event: str) -> list[Any]:
        ignored = getattr(RunObserver, event)
        return [getattr(one, event) for one in observers if getattr(type(one), event, ignored) is not ignored]

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        for tell in self._proposed:
            proposal = tell(worker, proposal, requests)
        return proposal


def _tell(listeners: list[Any], *event: Any, **more: Any) -> None:
    for listener in listeners:
        listener(*event, **more)
