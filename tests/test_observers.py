"""Observers follow the loop; a policy that wakes itself for ever ends its run with a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers import asks, breach, make_engine, make_real_engine, run_all

from minifuse.batching.iteration import Iteration
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Proposal
from minifuse.core.requests import Observer, Requests
from minifuse.stages import Memory


class Waker(Iteration):
    """Proposes no work from some iteration on, and asks to be woken soon."""

    name = "waker"
    soon: Callable[[float], float]
    first = 0  # iterations that it proposes

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        self.first -= 1
        return super().propose(worker, now, memory) if self.first >= 0 else Proposal(wake_at=self.soon(now))


def _waker(soon: Callable[[float], float], first: int = 0) -> Waker:
    waker = Waker()
    waker.soon, waker.first = soon, first
    return waker


@pytest.mark.parametrize("soon", [lambda now: now + 1e-7, lambda now: now + (5 - now) / 1e3, lambda now: now + 1e3])
def test_in_virtual_time(soon: Callable[[float], float]) -> None:
    engine = make_engine(batching=_waker(soon, first=2))
    with breach("progress", r"'waker' has woken itself 1,000 times"):
        run_all(engine, [asks("a", 2, 5), asks("b", 2, 5, at=0.5)])


def test_in_real_time() -> None:
    engine = make_real_engine(batching=_waker(lambda now: now + 1e-6))
    with pytest.raises(LawBroken, match="'waker' has woken itself"):
        run_all(engine, [asks("a", 2, 5)])


class Hasty(Iteration):
    """Has work for one of two workers, and the other asks for work at once, for ever."""

    name = "hasty"
    workers = 2

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        return Proposal(wake_at=now) if worker else super().propose(worker, now, memory)


def test_beside_a_plan_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still: the plan would never end."""
    monkeypatch.setattr("minifuse.core.observers.BESIDE_PLANS", 500)
    with pytest.raises(LawBroken, match="'hasty' has woken itself 500 times"):
        run_all(replace(make_engine(batching=Hasty()), observers=()), [asks("a", 2, 5)])


def test_patience_is_for_wakes_in_a_row() -> None:
    """A policy that is woken 900 times before each of four iterations."""
    left = [900] * 4

    class Patient(Iteration):
        name = "patient"

        def propose(self, worker: int, now: float, memory: Memory) -> Any:
            while left and left[0] <= 0:
                del left[0]
                return super().propose(worker, now, memory)
            if left:
                left[0] -= 1
                return Proposal(wake_at=now + 0.001)
            return super().propose(worker, now, memory)

    assert len(run_all(make_engine(batching=Patient()), [asks("a", 2, 4)])) == 4


def test_an_observer_is_told_of_each_proposal_each_pause_and_what_ended_it() -> None:
    """`dynamic` waits until its window closes; b arrives meanwhile; then two iterations run."""
    told: list[Any] = []

    class Notes(Observer):
        def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
            told.append((requests.now, worker, [*requests.sequences], proposal.wake_at))
            return proposal

        def waited(self, reasons: Any, end_s: float, in_vain: bool, requests: Any) -> None:
            told.append((in_vain, bool(requests.in_flight)))

    engine = replace(make_engine("dynamic", settings={"batching.window": "2s"}), observers=(Notes(),))
    run_all(engine, [asks("a", 2, 2), asks("b", 2, 1, at=1.0)])
    assert told == [
        *((0.0, 0, ["a"], 2.0), (0.0, None, ["a"], 1.0), (False, False)),  # b arrives
        *((1.0, 0, ["a", "b"], 2.0), (1.0, None, ["a", "b"], 2.0), (True, False)),  # the window closes
        *((2.0, 0, ["a", "b"], None), (False, True)),
        *((3.0, 0, ["a"], None), (False, True)),
    ]
