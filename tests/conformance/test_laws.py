"""The laws over every registered technique and every valid mix of stages. A stage registered later is covered."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

import pytest
from conformance.golden import MadeUpTokens

from minifuse.core.measured import measured_of
from minifuse.core.request import FinishReason
from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing import GRAPHS, SUBJECTS, TEXTS, Case, Subject, check_laws, observe, put_through
from minifuse.testing.drawn import try_each
from minifuse.testing.graphs import GraphScenario
from minifuse.testing.laws import Law
from minifuse.testing.observation import Observation
from minifuse.testing.search import Search, compared_laws
from minifuse.testing.texts import TextScenario

MIXES = {subject.kind: {row.name: row for row in subject.mixes()} for subject in SUBJECTS}
every_mix = pytest.mark.parametrize(
    ("subject", "row"),
    [
        pytest.param(subject, row, id=f"{subject.kind}-{name}")
        for subject in SUBJECTS
        for name, row in MIXES[subject.kind].items()
    ],
)


MANY_RUNS = ("batch_of_one", "under_load", "same_bits")  # laws that take more time than all others together


def _every_other(law: Law, number: int) -> Law:
    """Check a law on every other scenario: on the first and the third if its number is even."""
    turn = count(number)

    @wraps(law)
    def dealt(case: Case, seen: Observation) -> None:
        if next(turn) % 2 == 0:
            law(case, seen)

    return dealt


@every_mix
def test_laws_hold(subject: Subject, row: Technique) -> None:
    """A technique meets all laws that compare runs, a mix one of them: it has the code of techniques again.

    Hypothesis begins with the simplest scenario there is, so that two are one of any size. Of a technique's two of any
    size, each law of `MANY_RUNS` meets one. The scenarios are the same in every run: what is new is sought by the
    longer search below.
    """
    if row.name in TECHNIQUES:
        laws = compared_laws(subject)
        dealt = [_every_other(law, i) if law.__name__ in MANY_RUNS else law for i, law in enumerate(laws)]
        Search(subject, row, dealt).run(3, derandomize=True)
    else:
        put_through(subject, row, 2, dealt=list(MIXES[subject.kind]).index(row.name), derandomize=True)


@pytest.mark.long
@every_mix
def test_laws_hold_on_many(subject: Subject, row: Technique) -> None:
    put_through(subject, row, examples=300)


def test_every_technique_is_covered() -> None:
    for subject in SUBJECTS:
        assert set(serving(subject.kind)) <= set(MIXES[subject.kind])
    assert len(MIXES["transformer"]) >= 15
    assert "graph-merged by operator" in MIXES["cells"]


@pytest.mark.usefixtures("shorter_long_runs")
def test_a_stage_of_ones_own_is_put_through_all_that_it_serves() -> None:
    """Here it is the mixes and the laws that count."""
    held = check_laws(examples=1, batching="cellular", attention="per_sequence")
    assert "for transformers cellular, " in held
    assert "models of cells" not in held
    assert "for models of cells graph-padded." in check_laws(1, batching="graph_padded", attention="padded_cells")


class _AllMet(BaseException):
    """Ends hypothesis's search at once."""


def _reaches(scenarios: Any, attempt: Callable[[Any], set[str]], corners: set[str], seed: int) -> None:
    """Check that `attempt` on generated scenarios meets all corners. Generators drift.

    With another seed they are met as well, but later.
    """
    missing = set(corners)

    def search(scenario: Any) -> None:
        missing.difference_update(attempt(scenario))
        if not missing:
            raise _AllMet

    try:
        try_each(scenarios, search, 400, seed=seed)
    except _AllMet:
        return
    pytest.fail(f"never met: {missing}")


def test_scenarios_of_graphs_reach_the_corners() -> None:
    """What the laws are tried on must go on to have what makes them hard."""
    row = MIXES["cells"]["cellular"]
    corners = {"chain", "seq2seq", "tree", "dag", "refused", "memory-full", "worker 0", "worker 1", "worker 2"}
    corners |= {"discarded", "gathered", "batch of many", "stop", "length", "aborted"}

    def attempt(scenario: GraphScenario) -> set[str]:
        seen = observe(GRAPHS.case(row, scenario))
        met = {request.structure.kind for request in scenario.requests} | set(["refused"] * bool(seen.refused))
        met.update(sequence.finish_reason.value for sequence in seen.answers.values() if sequence.finish_reason)
        for step in seen.steps:
            plan = step.plan
            met |= {f"worker {plan.worker}", *(reason.code for reason in plan.reasons)}
            met.update(["discarded"] * (step.discarded > 0), ["gathered"] * (measured_of(step).num_gathers > 0))
            met.update(["batch of many"] * (len(plan.sequences) > 2))
        return met

    _reaches(GRAPHS.scenarios(row), attempt, corners, seed=6)


@pytest.mark.parametrize(
    ("kinds", "corners"),
    [
        ((), {"stop", "length", "evicted", "long", "turn of an aborted request"}),
        (("few",), {"turn refused when it arrived", "turn refused for the one before"}),
        (("few", "crowd"), {"aborted while it ran", "aborted before it ran", "aborted in a group", "third turn"}),
    ],
)
def test_scenarios_of_texts_reach_the_corners(kinds: tuple[str, ...], corners: set[str]) -> None:
    row = MIXES["transformer"]["vllm"]

    def attempt(scenario: TextScenario) -> set[str]:
        case = TEXTS.case(row, scenario)
        seen = observe(case, run=case.replay(MadeUpTokens()))
        by_id = {request.id: request for request in scenario.requests}
        met = set(["evicted"] * any(step.plan.evicted for step in seen.steps))
        met.update(["long"] * (max(len(request.prompt) for request in scenario.requests) > 128))
        for name, sequence in seen.answers.items():
            request = by_id[name]
            before = seen.answers.get(request.after or "")
            if sequence.finish_reason is FinishReason.ABORTED:
                met.add("aborted while it ran" if sequence.num_new else "aborted before it ran")
                met.update(["aborted in a group"] * (request.group is not None))
            elif sequence.finish_reason is not None:
                met.add(sequence.finish_reason.value)
            if before is not None and sequence.num_history and sequence.num_new:
                met.update(["third turn"] * (before.num_history > 0))
                met.update(["turn of an aborted request"] * (before.finish_reason is FinishReason.ABORTED))
        for name in seen.refused:
            if by_id[name].after in seen.answers:
                met.add("turn refused when it arrived")
            elif by_id[name].after is not None:
                met.add("turn refused for the one before")
        return met

    _reaches(TEXTS.scenarios(row, kinds), attempt, corners, seed=4)
