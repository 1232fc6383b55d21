"""A stage from a notebook is checked: what is unwritten, unlawful, or decided otherwise is told in a sentence."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from registers import keep_registers

from minifuse import stages
from minifuse.batching.iteration import Iteration
from minifuse.core.errors import UsageError
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory
from minifuse.show.notebook import verdict
from minifuse.show.notebook.played import play
from minifuse.show.notebook.prompts import asks
from minifuse.show.notebook.verdict import check

SIX = asks("sort 7 2 5", "count from 3 to 9", "reverse dog cat", "repeat duck 4 times", arrivals=[0, 0, 0, 0.001])


class Alike(Iteration):
    """Decides as its base."""

    name = "check-alike"


class Unwritten(Iteration):
    """Is a task."""

    name = "check-unwritten"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        raise NotImplementedError("who runs, and who joins?")


class Alone(Iteration):
    """Admits one request at a time: lawful, for it claims nothing."""

    name = "check-alone"
    work_conserving = False

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return Reason("alone", sequence.id, "not admitted: another runs") if self.running or joining else None


class Overfull(Iteration):
    """Admits without asking memory."""

    name = "check-overfull"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        for one in [*self.waiting]:
            self.running.add(self.waiting.remove(one.id))
        return Proposal((), (), ())


class Endless(Iteration):
    """Never decides."""

    name = "check-endless"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        while True:
            pass


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies above are known while a test of this file runs."""
    keep_registers(monkeypatch)
    for policy in (Alike, Unwritten, Alone, Overfull, Endless):
        stages.register(policy)


def test_a_stage_that_decides_alike_passes() -> None:
    found = check("orca", SIX, batching="check-alike", max_batch=2)
    assert found.passed
    iterations = len(play("orca", SIX, max_batch=2).steps)
    assert f"no law is broken on 10 scenarios, and all {iterations} iterations are those of orca" in repr(found)
    assert "passed" in found._repr_html_()


def test_without_requests_the_laws_are_all() -> None:
    assert repr(check("orca", batching="check-alike", scenarios=2)) == "passed: no law is broken on 2 scenarios."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("check-unwritten", "not yet: to be written: who runs, and who joins?"),
        ("check-alone", "no law is broken on 10 scenarios, but iteration 0 differs in work"),
        ("check-overfull", "is broken"),
    ],
)
def test_what_is_wrong_is_told(name: str, words: str) -> None:
    found = check("orca", SIX, batching=name, max_batch=2)
    assert not found.passed
    assert words in repr(found)
    assert "not yet" in found._repr_html_()


def test_only_where_a_long_decision_begins_to_differ_is_told() -> None:
    found = repr(check("orca", asks(*[(2, 2)] * 7), batching="check-alone", max_batch=7))
    assert "differs in work: ['r0 [0, 2)'], and orca has ..., 'r1 [0, 2)', 'r2 [0, 2)'," in found
    assert found.endswith("'r4 [0, 2)', ....")


def test_a_loop_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "PATIENCE_S", 0.5)
    found = check("orca", SIX, batching="check-endless")
    assert not found.passed
    assert "Endless.propose" in repr(found) or "does a loop of 'check-endless' end?" in repr(found)


def test_no_stage_is_refused() -> None:
    with pytest.raises(UsageError, match="check was given no stage of yours"):
        check("orca", SIX)


def test_a_cell_that_is_run_again_defines_its_stage_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    made = [type("Mine", (Iteration,), {"name": "check-again", "__module__": "__main__"}) for _ in range(2)]
    for one in made:
        stages.register(one)
    assert stages.stage("batching", "check-again") is made[1]
