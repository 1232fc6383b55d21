"""Notes what plans tell of a sequence, for the checks of the next plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from minifuse.core.places import State
from minifuse.core.plan import Place, Work

DONE = -1  # instead of the worker that a node is planned on


@dataclass(slots=True)
class Known:
    """An admitted sequence, as its plans tell."""

    length: int  # in tokens, as the engine has written it
    stop: int = 0  # the end of its last work
    workers: dict[int, int] = field(default_factory=dict)  # of each node that is planned; DONE: it has run
    slots: dict[int, int] = field(default_factory=dict)  # where each node was written: `check_placement` notes it
    place: Place | None = None  # where it lay last, while nothing has been moved

    def plan(self, work: Work, place: Place, worker: int) -> None:
        """Note work of a worker's next plan, and its place."""
        self.stop = max(self.stop, work.stop)
        if isinstance(place, State):
            self.workers[work.start] = worker
        else:
            self.place = place

    def complete(self, work: Work, length: int) -> None:
        """Note that a plan with this work has run; the sequence has `length` tokens."""
        self.length = length
        if work.start in self.workers:
            self.workers[work.start] = DONE
