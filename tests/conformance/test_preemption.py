"""The laws for `vllm` where memory is so short that requests are evicted, whatever becomes of their KV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minifuse.core.plan import Plan
from minifuse.core.request import Request
from minifuse.techniques import TECHNIQUES, mix
from minifuse.testing import TEXTS, Case, observe
from minifuse.testing.drawn import try_each
from minifuse.testing.laws import of_one_run
from minifuse.testing.search import compared_laws
from minifuse.testing.texts import TextScenario

VLLM = TECHNIQUES["vllm"]
COMPARED = compared_laws(TEXTS)
FATES: dict[str, dict[str, Any]] = {
    "recompute": {"memory__preemption": "recompute", "memory__host": None},
    "swap": {"memory__preemption": "swap", "memory__host": None},
    "tiny host": {"memory__preemption": "swap", "memory__host": 6},  # what it has no room for is computed again
}


def _on_each(
    examples: int, check: Callable[[Case], None], kinds: tuple[str, ...] = ("growing",), **options: Any
) -> None:
    """Check so many scenarios with these options, in which sequences outgrow memory."""
    cases = TEXTS.scenarios(VLLM, kinds).map(lambda one: TEXTS.case(VLLM, one.with_options(**options)))
    try_each(cases, check, examples, derandomize=True)


def _plans(case: Case) -> list[Plan]:
    """The plans of a run in which all answers have full length."""
    return [step.plan for step in observe(case, run=case.replay({})).steps]


def _moved(plans: list[Plan], kind: str) -> int:
    """The number of plans with moves of this kind."""
    return sum(any(move.kind == kind for move in plan.moves) for plan in plans)


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("share", [False, True], ids=["alone", "share"])
@pytest.mark.parametrize("fate", FATES)
def test_laws_hold(fate: str, share: bool, examples: int) -> None:
    """Each of the laws that compare runs is tried on every third scenario, and so on another than the simplest.

    In nine of ten of these scenarios a sequence is evicted, in most of them one is swapped out if possible.

    That is what is found; half as many are demanded, so that another version of hypothesis may draw others.
    """
    found: list[tuple[int, int]] = []  # evictions and swaps of each scenario

    def check(case: Case) -> None:
        seen = observe(case)
        of_one_run(case, seen)
        for law in COMPARED[len(found) % 3 :: 3]:
            law(case, seen)
        plans = _plans(case)
        found.append((sum(len(plan.evicted) for plan in plans), _moved(plans, "swap_out")))

    _on_each(examples, check, memory__share=share, **FATES[fate])
    evictions, swaps = zip(*found, strict=True)
    assert sum(map(bool, evictions)) >= 0.45 * len(found)
    if fate == "recompute":
        assert not any(swaps)
    else:
        assert sum(map(bool, swaps)) >= 0.3 * len(found)
    if fate == "tiny host":
        assert sum(swaps) < 0.9 * sum(evictions)


def test_prompts_that_begin_alike_do_share() -> None:
    """Otherwise the laws would show nothing under `share`: a copy is planned in a good fifth of the scenarios."""
    copies: list[bool] = []
    check = lambda case: copies.append(_moved(_plans(case), "copy") > 0)  # noqa: E731
    _on_each(30, check, kinds=("growing", "crowd"), memory__share=True)
    assert sum(copies) >= 0.1 * len(copies)


TEXT = (28, 7, 5, 23)
TOGETHER = {  # id, prompt, new tokens, arrival
    "blocks are free": [
        ("r0", TEXT, 4, 0.2),
        ("r1", (28,), 4, 0.205),
        ("r2", TEXT, 4, 0.215),
        ("r3", TEXT, 4, 0.215),
        ("r4", (28,), 4, 0.22),
        ("r5", (28,), 1, 0.235),
    ],
    "blocks are taken at once": [
        ("r0", TEXT, 4, 0.0475),
        ("r1", (20, 21), 1, 0.0825),
        ("r2", (20,), 4, 0.0625),
        ("r3", TEXT[:2], 4, 0.007),
        ("r4", (20, 21, 11, 0, 14, 10, 19, 14), 1, 0.042),
        ("r5", TEXT, 4, 0.066),
        ("r6", (20, 21), 1, 0.081),
        ("r7", (20,), 1, 0.081),
    ],
}


@pytest.mark.parametrize("host", [None, 9, 12])
@pytest.mark.parametrize("which", TOGETHER)
def test_sequences_that_share_blocks_are_swapped_out_together(which: str, host: int | None) -> None:
    """Each has copies of its own on the host, if that has room for it."""
    requests = tuple(
        Request(name, prompt, new, ignore_eos=True, arrival_s=arrival_s)
        for name, prompt, new, arrival_s in TOGETHER[which]
    )
    options = {"batching.max_batch": 4, "memory.block_size": 3, "memory.share": True}
    options |= {"memory.preemption": "swap", "memory.host": host}
    scenario = TextScenario(
        requests=requests, options=tuple(options.items()), model="one-kv-head", capacity=960, replayed=True
    )
    case = TEXTS.case(mix(VLLM, batching="mlfq"), scenario)
    seen = observe(case)
    assert any(len(plan.evicted) > 1 for plan in seen.plans.values())
    of_one_run(case, seen)
