"""The laws over every registered technique and every valid mix of stages. A stage registered later is covered."""

import pytest
from hypothesis import HealthCheck, given, settings

from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing import LAWS, Scenario, mixes, scenarios

MIXES = {row.name: row for row in mixes()}


def _try(law: str, row: Technique, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(scenarios())
    def attempt(scenario: Scenario) -> None:
        LAWS[law](row, scenario)

    attempt()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_law_holds(law: str, row: Technique) -> None:
    _try(law, row, examples=20 if row.name in TECHNIQUES else 5)  # a mix meets the same code again


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_law_holds_on_many(law: str, row: Technique) -> None:
    _try(law, row, examples=300)


def test_every_technique_is_covered() -> None:
    assert set(serving("transformer")) <= set(MIXES)
    assert len(MIXES) >= 15
