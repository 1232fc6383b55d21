"""The laws for `vllm` where memory is so short that requests are evicted, under every fate of their KV."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from minifuse.execute.virtual import placeholder_tokens
from minifuse.report import StepReport
from minifuse.techniques import TECHNIQUES
from minifuse.testing import LAWS, Scenario, observe, scenarios

VLLM = TECHNIQUES["vllm"]
FATES: dict[str, dict[str, Any]] = {
    "recompute": {"memory.preemption": "recompute", "memory.host": None},
    "swap": {"memory.preemption": "swap", "memory.host": None},
    "tiny host": {"memory.preemption": "swap", "memory.host": 6},  # what it has no room for is computed again
}
EXAMPLES = {"of_one_run": 20}  # the others make several runs of each


def _fixed(scenario: Scenario, options: dict[str, Any]) -> Scenario:
    return replace(scenario, options=tuple({**dict(scenario.options), **options}.items()))


def _moved(steps: list[StepReport], kind: str) -> int:
    """In how many plans something is."""
    return sum(any(move.kind == kind for move in step.plan.moves) for step in steps)


@pytest.mark.parametrize("law", [law for law in LAWS if law != "same_bits"])
@pytest.mark.parametrize("share", [False, True], ids=["alone", "share"])
@pytest.mark.parametrize("fate", FATES)
def test_law_holds(fate: str, share: bool, law: str) -> None:
    """In nine of ten of these scenarios somebody is evicted, in most of them somebody is swapped out if possible.

    That is what is found; half as many are asked for, so that another version of hypothesis may draw others.
    """
    evicting = swapping = evictions = swaps = examples = 0

    @settings(
        max_examples=EXAMPLES.get(law, 7),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(kind="growing"))
    def attempt(drawn: Scenario) -> None:
        nonlocal evicting, swapping, evictions, swaps, examples
        scenario = _fixed(drawn, {**FATES[fate], "memory.share": share})
        LAWS[law](VLLM, scenario)
        steps = observe(VLLM, scenario, run=placeholder_tokens).steps  # answers of full length
        evicted, swapped = sum(len(step.plan.evicted) for step in steps), _moved(steps, "swap_out")
        examples, evictions, swaps = examples + 1, evictions + evicted, swaps + swapped
        evicting, swapping = evicting + bool(evicted), swapping + bool(swapped)

    attempt()
    assert evicting >= 0.45 * examples
    if fate == "recompute":
        assert swaps == 0
    else:
        assert swapping >= 0.3 * examples
    if fate == "tiny host":
        assert swaps < 0.9 * evictions


def test_prompts_that_begin_alike_do_share() -> None:
    """Otherwise the laws under `share` would say nothing: a copy is planned in a good fifth of the scenarios."""
    copies = examples = 0

    @settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(scenarios(kind="growing"))
    def attempt(drawn: Scenario) -> None:
        nonlocal copies, examples
        scenario = _fixed(drawn, {"memory.share": True})
        copies += _moved(observe(VLLM, scenario, run=placeholder_tokens).steps, "copy") > 0
        examples += 1

    attempt()
    assert copies >= 0.1 * examples
