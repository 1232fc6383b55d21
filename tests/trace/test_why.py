"""Why each waiting request was not admitted: in the reasons of every plan and wait, and as lines."""

from __future__ import annotations

import pytest
from crowds import crowded
from helpers import asks, make_engine, run_all, sentence

from minifuse.cli.why import WhyLines
from minifuse.core.errors import UsageError
from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Phase, Sequence
from minifuse.serve.engine import ServingEngine
from minifuse.serve.settings import Settings
from minifuse.stages import Memory
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.trace.log import decisions
from minifuse.trace.why import Accounting

WAITING = (Phase.RECEIVED, Phase.SUSPENDED)


def _accounted(worker: int | None, proposal: Proposal, *sequences: Sequence) -> Proposal:
    """The proposal with the reasons of `--why`, when these sequences have been received."""
    requests = make_engine("orca").requests
    requests.sequences.update({sequence.id: sequence for sequence in sequences})
    return Accounting().proposed(worker, proposal, requests)


def _reasons(proposal: Proposal, *names: str) -> dict[str, tuple[str, str]]:
    """The code and the text of each reason when these wait."""
    accounted = _accounted(0 if proposal.work else None, proposal, *(Sequence(asks(name)) for name in names))
    assert len({reason.sequence for reason in accounted.reasons}) == len(accounted.reasons)
    return {reason.sequence: (reason.code, reason.text) for reason in accounted.reasons}


def test_who_waits_behind_another() -> None:
    a, b = Sequence(asks("a")), Sequence(asks("b"))
    full = Reason("memory-full", "b", "not admitted: 3 slots are free")
    accounted = _accounted(1, Proposal((Work("a", 0, 2),), (a,), (full,)), a, b, Sequence(asks("c")))
    assert accounted.reasons == (full, Reason("behind", "c", "not considered: worker 1 admits none behind b"))


def test_who_is_passed_over_without_a_word() -> None:
    nodes = (Work("a", 0, 1, "leaf"), Work("a", 1, 2, "leaf"), Work("a", 4, 5, "inner"))
    assert _reasons(Proposal((Work("a", 0, 12),)), "b") == {
        "b": ("not-in-batch", "not admitted: worker 0 runs 12 tokens without it")
    }
    assert _reasons(Proposal(nodes), "b") == {
        "b": ("not-in-batch", "not admitted: worker 0 runs 2 nodes of leaf, 1 node of inner without it")
    }
    assert _reasons(Proposal(), "b", "c").keys() == {"b", "c"}
    assert _reasons(Proposal(), "b")["b"][0] == "no-reason"


def test_who_waits_because_others_are_evicted() -> None:
    running = Sequence(asks("a"))
    running.phase = Phase.RUNNING
    evicted = Reason("evicted", "a", "evicted: the others have no room")
    proposal = Proposal((Work("z", 3, 4),), reasons=(evicted,), evict=(running,))
    accounted = _accounted(0, proposal, running, Sequence(asks("b")))
    assert accounted.reasons == (evicted, Reason("evicting", "b", "not admitted: worker 0 evicts a"))


def test_a_run_tells_of_each() -> None:
    requests = [asks(name, 2, 2) for name in "abcd"]
    steps = run_all(make_engine("orca", settings={"batching.max_batch": "2"}, why=True), requests)
    told = [[(reason.sequence, reason.code) for reason in step.plan.reasons] for step in steps]
    assert told[:3] == [[("c", "batch-full"), ("d", "behind")]] * 2 + [[]]
    steps = run_all(make_engine("orca", settings={"batching.max_batch": "2"}), requests)
    assert [[reason.sequence for reason in step.plan.reasons] for step in steps][:2] == [["c"]] * 2


def test_a_run_that_tells_nothing_has_no_observer_for_it() -> None:
    row = TECHNIQUES["orca"]
    assert crowded(row, why=False)[0].observers == ()
    assert [type(one) for one in crowded(row, why=True)[0].observers] == [Accounting]


class Spy:
    """Notes at every proposal who waits, and then who is passed over."""

    def __init__(self, engine: ServingEngine) -> None:
        self.engine, self._propose = engine, engine.batching.propose
        engine.batching.propose = self.propose  # type: ignore[method-assign]
        self.passed_over: list[set[str]] = []

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        waiting = {name for name, one in self.engine.sequences.items() if one.phase in WAITING}
        proposal = self._propose(worker, now, memory)
        if proposal.work:
            self.passed_over.append(waiting - {one.id for one in proposal.admit})
        return proposal


@pytest.mark.parametrize("row", TECHNIQUES.values(), ids=TECHNIQUES)
def test_every_technique_tells_of_each_and_decides_alike(row: Technique) -> None:
    engine, requests = crowded(row, why=True)
    spy = Spy(engine)
    steps = run_all(engine, requests)
    assert len(steps) == len(spy.passed_over)
    for step in steps:
        told = [reason.sequence for reason in step.plan.reasons]
        assert len(told) == len(set(told))
        assert spy.passed_over[step.plan.step] <= set(told)
    assert any(spy.passed_over)
    assert all(reason.code != "no-reason" for step in steps for reason in step.plan.reasons)
    other, requests = crowded(row, why=False)
    run_all(other, requests)
    assert _without_reasons(engine) == _without_reasons(other)


def _without_reasons(engine: ServingEngine) -> bytes:
    return decisions(
        {name: value for name, value in event.items() if name != "reasons"} for event in engine.trace.events()
    )


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine("dynamic", settings={"batching.max_batch": "2", "batching.window": "2s"}, why=True)
    run_all(engine, [asks(f"r{i}", 2, 3) for i in range(13)])
    lines = WhyLines()
    for event in engine.trace.events():
        lines.read(event)
    written = capsys.readouterr().err.splitlines()
    assert written[:6] == [
        "    0.000 s step 0 of worker 0 admits r0 r1",
        "            r2 not admitted: the batch has 2 requests",
        "            r3 r4 r5 r6 r7 r8 r9 r10 and 2 more not considered: worker 0 admits none behind r2",
        "    1.000 s step 1 of worker 0 admits none",
        "            r2 not admitted: the batch of 2 still runs",
        "            r3 r4 r5 r6 r7 r8 r9 r10 and 2 more not considered: worker 0 admits none behind r2",
    ]
    assert written[6] == "            admits none in the next iteration for the same reasons"
    assert written[-2:] == [
        "   18.000 s step 18 of worker 0 admits r12",
        "            admits none in the next 2 iterations",
    ]


def test_lines_of_a_wait(capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine("dynamic", settings={"batching.max_batch": "8", "batching.window": "2s"}, why=True)
    run_all(engine, [asks("a", 2, 1), asks("b\x1b[2J", 2, 1)])
    lines = WhyLines()
    for event in engine.trace.events():
        lines.read(event)
    assert capsys.readouterr().err.splitlines() == [
        "    0.000 s nothing runs until 2.000 s",
        "            a not admitted: 2 wait and the window of 2 s closes at 2.000 s",
        "            b\\x1b[2J not considered: none is admitted behind a",
        "    2.000 s step 0 of worker 0 admits a b\\x1b[2J",
    ]


def test_why_that_is_no_switch() -> None:
    with pytest.raises(UsageError) as error:
        Settings(why="yes")  # type: ignore[arg-type]
    sentence(error.value, "why", "'yes'", "True or False")
