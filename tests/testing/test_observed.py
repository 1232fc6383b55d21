"""What is watched of a run: also of stages that hold what cannot be pickled, or that wake themselves for ever."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from helpers import breach

from minifuse.batching.iteration import Iteration
from minifuse.core.plan import Proposal
from minifuse.core.request import Request
from minifuse.memory.contiguous import Contiguous
from minifuse.stages import Kind, register
from minifuse.techniques import mix, technique
from minifuse.testing import TEXTS, Observation, observe
from minifuse.testing.fingerprint import fingerprint
from minifuse.testing.laws import of_one_run
from minifuse.testing.texts import TextScenario

SCENARIO = TextScenario(
    requests=tuple(Request(f"r{i}", (1, 2), max_new_tokens=2) for i in range(2)), options=(), model="gptj", capacity=20
)


def _observe(kind: Kind, name: str) -> Observation:
    return observe(TEXTS.case(mix(technique("orca"), **{kind: name}), SCENARIO))


def test_a_request_that_is_aborted_as_it_arrives_has_arrived() -> None:
    """Copies that take no time complete in the instant in which a request arrives and is admitted."""
    first = Request("r0", (1, 2, 3, 4), max_new_tokens=2, conversation="a")
    scenario = TextScenario(
        requests=(first, Request("r1", (1,), max_new_tokens=3, arrival_s=0.02)),
        options=(("memory.chunk", 2), ("memory.ahead", 1.0)),
        model="gptj",
        capacity=24,
        aborts=((3, "r1"),),
    )
    case = TEXTS.case(technique("pensieve"), scenario)
    seen = observe(case)
    assert seen.ended_s["r1"] == seen.arrived_s["r1"] == 0.02
    assert any("r1" in step.plan.admitted for step in seen.steps)
    assert not seen.never_arrived(case.requests[1])
    of_one_run(case, seen)
    before = observe(TEXTS.case(technique("pensieve"), replace(scenario, aborts=((2, "r1"),))))
    assert before.never_arrived(case.requests[1])


@pytest.mark.usefixtures("own_register")
@pytest.mark.parametrize("changes", [False, True])
def test_a_memory_that_holds_what_cannot_be_pickled(changes: bool) -> None:
    class Local:
        asked = 0

    @register
    class Locked(Contiguous):
        """Holds a lock, a lambda, and an object of a class of its own, in a slot."""

        __slots__ = ("local",)
        name = "locked"

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.lock, self.key, self.local = threading.Lock(), (lambda extent: extent), Local()

        def room(self) -> Any:
            if changes:
                self.local.asked += 1
            return super().room()

    if not changes:
        assert len(_observe("memory", "locked").answers) == 2
        return
    with breach("pure", "changed memory"):
        _observe("memory", "locked")


def test_a_change_beside_what_cannot_be_pickled_shows() -> None:
    held: dict[str, Any] = {"lock": threading.Lock(), "rows": [1]}
    before = fingerprint(held)
    assert fingerprint(held) == before
    held["rows"].append(2)
    assert fingerprint(held) != before


@pytest.mark.usefixtures("own_register")
@pytest.mark.parametrize(("wakes", "law"), [(10**9, "progress"), (3, "reasons")])
def test_a_policy_that_wakes_itself(wakes: int, law: str) -> None:
    """For ever, it makes no progress; for a while, it owes a reason."""

    @register
    class Waker(Iteration):
        """Waits for a moment, again and again."""

        name = "waker"
        work_conserving = False
        asked = 0

        def propose(self, worker: int, now: float, memory: Any) -> Proposal:
            self.asked += 1
            return Proposal(wake_at=now + 1e-6) if self.asked <= wakes else super().propose(worker, now, memory)

    with breach(law):
        _observe("batching", "waker")
