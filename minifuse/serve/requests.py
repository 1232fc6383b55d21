"""Requests that may follow other requests, be refused on arrival, or end early."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from minifuse.contracts.fault import call_check
from minifuse.core.errors import RequestRefused
from minifuse.core.observers import RunObserver
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.requests import Requests
from minifuse.core.turns import Turns


@dataclass(eq=False, repr=False)
class ServedRequests(Requests):
    """Reports requests to an observer, and lets each turn wait for the turn before."""

    arrivals: Turns
    observer: RunObserver

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first_token_s: dict[str, float] = {}
        self.refused: dict[str, str] = {}  # request -> why it was refused on arrival
        self.ended: deque[Sequence] = deque()  # finished sequences that are not yet answered, in order

    def submit(self, prompts: tuple[Request, ...], now: float) -> None:
        """Check and queue a request's prompts; they arrive at `arrival_s`, but not before `now`.

        Raises:
            RequestRefused: one of the prompts could never be served. Nothing has changed.
        """
        try:
            prompts = self.arrivals.read(prompts)
            known = [self.reader.fit(request) for request in self.arrivals.check(prompts)]
            for request in known:
                self.reader.check(request)
            call_check(self.memory, *known)
        except RequestRefused as refusal:
            self.arrivals.refuse(prompts)
            for prompt in prompts:
                self.observer.refused(prompt.id, str(refusal))
            raise
        for request, num_history in self.arrivals.add(prompts, now):
            measured = request.arrival_s != prompts[0].arrival_s  # all prompts were given this arrival time
            self.observer.requested(self.reader.fit(request), num_history, measured=measured)

    def begin(self, request: Request, num_history: int) -> None:
        """Hand a request to the stages, or refuse it if its text is too long."""
        try:
            if request.after is not None:  # its whole text became known when the previous request ended
                self.observer.requested(request, num_history, measured=True)
                self.reader.check(request, num_history)
                call_check(self.memory, request)
            super().begin(request, num_history)
        except RequestRefused as refusal:
            sequence = self.sequences.get(request.id, Sequence(request, num_history=num_history))
            self.end_early(sequence, FinishReason.REFUSED, str(refusal))

    def take(self, completion: Completion, usage: KVUsage) -> StepReport:
        report = super().take(completion, usage)
        for name in report.tokens.keys() - self.first_token_s.keys():
            self.first_token_s[name] = report.ended_s
        return report

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence, and let the requests that follow it arrive."""
        try:
            super().finish(sequence, reason)
        finally:  # even if memory fails to release the sequence
            if sequence.id in self.finished:
                self.ended.append(sequence)
        for request, why in self.arrivals.ended(sequence):
            self.end_unseen(request, FinishReason.REFUSED, why)

    def end_early(self, sequence: Sequence, reason: FinishReason, why: str = "") -> None:
        """End a sequence before its answer is complete."""
        if reason is FinishReason.REFUSED:
            self.refused[sequence.id] = why
            self.observer.refused(sequence.id, why, received=True)
        elif reason is FinishReason.ABORTED:
            self.observer.aborted(sequence.id, self.now)
        self.finish(sequence, reason)

    def end_unseen(self, request: Request, reason: FinishReason, why: str = "") -> None:
        """End a request that has not arrived; the stages never see it."""
        if request.after is not None:
            self.observer.requested(request)
        self.end_early(Sequence(request), reason, why)

    def forget(self, name: str) -> None:
        """Forget a request that has ended."""
        self.finished.pop(name, None)
        self.first_token_s.pop(name, None)
        self.refused.pop(name, None)
        self.arrivals.forget(name)

    def give_up(self, stages_failed: bool) -> list[str]:
        """End every unfinished request with the tokens that it has. Returns the ids.

        Args:
            stages_failed: whether a stage has failed; the stages are then not called again.
        """
        if stages_failed:
            deaf: Any = SimpleNamespace(release=lambda *ended: None, check=self.memory.check)
            self.batching = self.memory = deaf
        self.in_flight.clear()
        for sequence in self.in_flight.leaving.values():
            self.release(sequence)
        self.in_flight.leaving.clear()
        names = list(self.sequences)
        for request in self.arrivals.withdraw_all():
            names.append(request.id)
            self.end_unseen(request, FinishReason.INTERRUPTED)
        for sequence in list(self.sequences.values()):
            self.end_early(sequence, FinishReason.INTERRUPTED)
        return names
