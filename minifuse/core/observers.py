"""Several observers as one."""

from __future__ import annotations

from functools import partial
from typing import Any

from minifuse.core.plan import Proposal
from minifuse.core.requests import Observer, Requests

__all__ = ["Observers"]

EVENTS = ("requested", "refused", "aborted", "placed", "planned", "completed", "waited", "woke", "ended")


class Observers(Observer):
    """Tells several observers of each event, in their order; each only of what it listens to."""

    def __init__(self, *observers: Observer) -> None:
        for event in EVENTS:
            setattr(self, event, partial(_tell, self._listeners(observers, event)))
        self._proposed = self._listeners(observers, "proposed")

    @staticmethod
    def _listeners(observers: tuple[Observer, ...], event: str) -> list[Any]:
        ignored = getattr(Observer, event)
        return [getattr(one, event) for one in observers if getattr(type(one), event) is not ignored]

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        for tell in self._proposed:
            proposal = tell(worker, proposal, requests)
        return proposal


def _tell(listeners: list[Any], *event: Any, **more: Any) -> None:
    for listener in listeners:
        listener(*event, **more)
