"""The schedules of vllm by hand: prompts alone, which requests are evicted, and how much work they return with."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import asks, make_engine, run_all, schedule

from minifuse.core.plan import Move
from minifuse.core.report import StepReport
from minifuse.core.request import Phase
from minifuse.serve.engine import ServingEngine

SWAP = {"memory.preemption": "swap"}


def _vllm(blocks: int = 50, size: int = 2, settings: dict[str, Any] | None = None) -> ServingEngine:
    options = {"memory.block_size": size, "memory.watermark": 0.0, **(settings or {})}
    return make_engine("vllm", capacity=blocks * size, settings=options)


def _evicted(steps: list[StepReport]) -> dict[float, tuple[str, ...]]:
    return {step.started_s: step.plan.evicted for step in steps if step.plan.evicted}


# --- prompts and single tokens


def test_prompts_run_in_iterations_of_their_own() -> None:
    """b arrives during a's prompt; a waits for its second token until b's prompt is computed."""
    steps = run_all(_vllm(), [asks("a", 3, 3), asks("b", 2, 3, at=0.5)])
    assert schedule(steps) == ["0: a[0:3)", "1: b[0:2)", "2: a[3:4) b[2:3)", "3: a[4:5) b[3:4)"]


def test_a_prompt_of_one_token_is_a_single_token() -> None:
    steps = run_all(_vllm(), [asks("a", 3, 3), asks("b", 1, 2, at=0.5)])
    assert schedule(steps) == ["0: a[0:3)", "1: a[3:4) b[0:1)", "2: a[4:5) b[1:2)"]
    waiting = run_all(_vllm(), [asks("a", 3, 1), asks("b", 1, 1), asks("c", 3, 1)])
    assert schedule(waiting) == ["0: a[0:3)", "1: b[0:1)", "2: c[0:3)"]  # c does not overtake b
    assert [str(reason) for reason in waiting[0].plan.reasons] == [
        "b not admitted: prompts and single tokens run in iterations of their own"
    ]


def test_a_token_budget_cuts_prompts() -> None:
    steps = run_all(_vllm(settings={"batching.token_budget": 4}), [asks("a", 6, 2), asks("b", 3, 1)])
    assert schedule(steps) == [
        "0: a[0:4)",
        "1: a[4:6) b[0:2)",
        "2: a[6:7) b[2:3)",  # the rest of b's prompt is a single token
    ]


def test_whole_prompts_share_an_iteration_up_to_a_number_of_tokens() -> None:
    """a and b fill an iteration exactly; c does not fit beside them, nor d beside c: d is too long, and runs alone."""
    prompts = [asks("a", 4, 1), asks("b", 2, 2), asks("c", 3, 1), asks("d", 9, 1), asks("e", 2, 1)]
    steps = run_all(_vllm(settings={"batching.prompt_tokens": 6}), prompts)
    assert schedule(steps) == ["0: a[0:4) b[0:2)", "1: c[0:3)", "2: d[0:9)", "3: e[0:2)", "4: b[2:3)"]
    assert [str(reason) for reason in steps[0].plan.reasons] == [
        "c not admitted: newcomers have 6 tokens of the 6 that may be prompts"
    ]


def test_a_limit_of_prompts_does_not_limit_single_tokens() -> None:
    steps = run_all(_vllm(settings={"batching.prompt_tokens": 1}), [asks("a", 2, 2), asks("b", 1, 2), asks("c", 1, 1)])
    assert schedule(steps) == ["0: a[0:2)", "1: a[2:3) b[0:1) c[0:1)", "2: b[1:2)"]


def test_a_token_budget_serves_requests_in_order_of_age() -> None:
    steps = run_all(_vllm(settings={"batching.token_budget": 1}), [asks("a", 1, 2), asks("b", 1, 1)])
    assert schedule(steps) == ["0: a[0:1)", "1: a[1:2)", "2: b[0:1)"]


# --- eviction: 4 blocks of 2

CROWDED = [asks("a", 3, 5), asks("b", 3, 3)]


def test_an_evicted_request_recomputes_all_its_text() -> None:
    steps = run_all(_vllm(4), CROWDED)
    assert schedule(steps) == [
        "0: a[0:3) b[0:3)",  # two blocks each
        "1: a[3:4) b[3:4)",
        "2: a[4:5)",  # a needs a third block: b, the newest, gives up both of its own
        "3: a[5:6)",
        "4: a[6:7)",
        "5: b[0:5)",  # three tokens of prompt and two of answer
    ]
    assert _evicted(steps) == {2.0: ("b",)}
    assert [step.plan.moves for step in steps] == [()] * 6
    assert [step.plan.admitted for step in steps if step.plan.admitted] == [("a", "b"), ("b",)]
    assert "b evicted: the others have no room for their next token" in map(str, steps[2].plan.reasons)


def test_a_swapped_request_continues_with_a_single_token() -> None:
    steps = run_all(_vllm(4, settings=SWAP), CROWDED)
    assert schedule(steps)[2:] == ["2: a[4:5)", "3: a[5:6)", "4: a[6:7)", "5: b[4:5)"]
    assert [step.plan.moves for step in steps[:3]] == [(), (), (Move("swap_out", 4, 0, 4, target_tier="host"),)]
    assert {move.kind for move in steps[5].plan.moves} == {"swap_in"}
    assert sum(move.num_tokens for move in steps[5].plan.moves) == 4
    assert [step.usage.host for step in steps] == [0, 0, 4, 4, 4, 0]


def test_kv_that_the_host_has_no_room_for_is_recomputed() -> None:
    steps = run_all(_vllm(4, settings={**SWAP, "memory.host": 3}), CROWDED)
    assert schedule(steps) == schedule(run_all(_vllm(4), CROWDED))
    assert not any(step.plan.moves for step in steps)


def test_an_evicted_request_is_suspended_until_it_is_admitted_again() -> None:
    engine = _vllm(4)
    for request in CROWDED:
        engine.submit(request)
    phases = [engine.sequences["b"].phase for _ in engine.run() if "b" in engine.sequences]
    assert phases == [Phase.RUNNING, Phase.RUNNING, Phase.SUSPENDED, Phase.SUSPENDED, Phase.SUSPENDED]


def test_the_newest_are_evicted_first_and_readmitted_in_order_of_age() -> None:
    """c is evicted, then b; both are served again before d, which arrived after them."""
    requests = [asks("a", 2, 4), asks("b", 2, 4), asks("c", 2, 2), asks("d", 2, 1, at=1.5)]
    steps = run_all(_vllm(4), requests)
    assert schedule(steps) == [
        "0: a[0:2) b[0:2) c[0:2)",
        "1: a[2:3) b[2:3)",  # one block was left: a's; b has c's
        "2: a[3:4) b[3:4)",
        "3: a[4:5)",
        "4: b[0:5)",  # three of four blocks: c does not fit, and d, which would, does not overtake it
        "5: c[0:3) d[0:2)",
    ]
    assert _evicted(steps) == {1.0: ("c",), 3.0: ("b",)}
    full = "c not admitted: needs 2 blocks of 2 KV tokens, 1 is free"
    assert full in map(str, steps[4].plan.reasons)


def test_several_are_evicted_at_once_and_one_may_be_evicted_for_its_own_token() -> None:
    """Three blocks, all full: a gets c's; then b is the newest of those left, and has no room either."""
    steps = run_all(_vllm(3), [asks("a", 2, 3), asks("b", 2, 2), asks("c", 2, 2)])
    assert schedule(steps) == ["0: a[0:2) b[0:2) c[0:2)", "1: a[2:3)", "2: a[3:4)", "3: b[0:3)", "4: c[0:3)"]
    assert _evicted(steps) == {1.0: ("c", "b")}


@pytest.mark.parametrize("settings", [{}, {"batching.token_budget": 1}])
def test_a_prompt_that_does_not_fit_is_told_so_while_single_tokens_run(settings: dict[str, Any]) -> None:
    """Two of three blocks are a's, and b needs two: neither the phase of the iteration nor its budget keeps b out."""
    steps = run_all(_vllm(3, settings=settings), [asks("a", 3, 3), asks("b", 3, 1)])
    decodes = [step.plan for step in steps if step.plan.work[0].sequence == "a" and step.plan.work[0].start >= 3]
    full = "b not admitted: needs 2 blocks of 2 KV tokens, 1 is free"
    assert [[*map(str, plan.reasons)] for plan in decodes] == [[full], [full]]


def test_an_iteration_that_evicts_admits_none() -> None:
    """With swap, a returning request has a single token, and could join the very iteration that evicts it."""
    steps = run_all(_vllm(4, settings=SWAP), [*CROWDED, asks("c", 1, 2, at=1.5)])
    assert steps[2].plan.evicted
    assert schedule(steps)[2:4] == ["2: a[4:5)", "3: a[5:6)"]
    assert steps[2].plan.admitted == ()
