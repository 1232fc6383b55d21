"""The laws over every registered technique and every valid mix of stages. A stage registered later is covered."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing import GRAPHS, SUBJECTS, Subject, check_laws, observe, put_through
from minifuse.testing.graphs import GraphScenario

MIXES = {subject.kind: {row.name: row for row in subject.mixes()} for subject in SUBJECTS}
every_mix = pytest.mark.parametrize(
    ("subject", "row"),
    [
        pytest.param(subject, row, id=f"{subject.kind}-{name}")
        for subject in SUBJECTS
        for name, row in MIXES[subject.kind].items()
    ],
)


@every_mix
def test_laws_hold(subject: Subject, row: Technique) -> None:
    """A mix meets the code of techniques again: it meets every law that compares runs, each on scenarios of its own.

    Hypothesis begins with the simplest scenario there is, so that two are one of any size.
    """
    if row.name in TECHNIQUES:
        put_through(subject, row, examples=12)
    else:
        put_through(subject, row, examples=2, dealt=True)


@pytest.mark.long
@every_mix
def test_laws_hold_on_many(subject: Subject, row: Technique) -> None:
    put_through(subject, row, examples=300)


def test_every_technique_is_covered() -> None:
    for subject in SUBJECTS:
        assert set(serving(subject.kind)) <= set(MIXES[subject.kind])
    assert len(MIXES["transformer"]) >= 15
    assert "graph-merged by operator" in MIXES["cells"]


def test_a_stage_of_ones_own_is_put_through_all_that_it_serves() -> None:
    held = check_laws(examples=2, batching="cellular", attention="per_sequence")
    assert "for transformers cellular, " in held
    assert "models of cells" not in held
    assert "for models of cells graph-padded." in check_laws(2, batching="graph_padded", attention="padded_cells")
    with pytest.raises(ValueError, match="No valid mix"):
        check_laws(batching="serial", attention="cells")


class _AllMet(BaseException):
    """Ends hypothesis's search at once."""


def test_scenarios_reach_the_corners() -> None:
    """Generators drift: what the laws are tried on must go on to have what makes them hard."""
    missing = {"chain", "seq2seq", "tree", "dag", "refused", "memory-full", "worker 0", "worker 1", "worker 2"}
    missing |= {"discarded", "gathered", "batch of many", "stop", "length"}
    row = MIXES["cells"]["cellular"]

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(GRAPHS.scenarios(row))
    def attempt(scenario: GraphScenario) -> None:
        seen = observe(GRAPHS.case(row, scenario))
        missing.difference_update(request.structure.kind for request in scenario.requests)
        missing.difference_update(["refused"] * bool(seen.refused))
        for step in seen.steps:
            plan = step.plan
            met = {f"worker {plan.worker}", *(reason.code for reason in plan.reasons)}
            met.update(["discarded"] * (step.discarded > 0), ["gathered"] * (step.gathers.copies > 0))
            met.update(["batch of many"] * (len(plan.sequences) > 2))
            met.update(reason.value for reason in step.finished.values())
            missing.difference_update(met)
        if not missing:
            raise _AllMet

    with pytest.raises(_AllMet):
        attempt()
