"""Temporal fusion's schedules worked out by hand, after Flover's Fig. 1 and Fig. 3, and an independent count."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from helpers import asks, make_engine, run_all, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.core.request import Phase
from minifuse.core.shapes import Region
from minifuse.serve.engine import ServingEngine

PREPARING = 0.4
BINARY = 7 / 16  # for times that are compared: sums of it are exact


def seconds(plan: Plan) -> float:
    """An iteration takes a second, pre-processing less."""
    return PREPARING if plan.phase is Phase.PREPROCESSING else 1.0


def _fusion(**settings: Any) -> ServingEngine:
    named = {name.replace("_", ".", 1): value for name, value in settings.items()}
    return make_engine("fusion", settings=named, cost=seconds)


def _main(steps: list[StepReport]) -> list[StepReport]:
    return [step for step in steps if step.plan.phase is Phase.RUNNING]


def _order(steps: list[StepReport]) -> list[str]:
    return schedule(sorted(steps, key=lambda step: step.plan.step))


# --- by hand


def test_fig_3() -> None:
    """Request 1 is ready in the middle of iteration 2, waits for its end, and joins iteration 3.

    There the stream generates the 4th token of request 0 and the 1st of request 1; in iteration 4 the 5th and the 2nd.
    """
    steps = run_all(_fusion(), [asks("0", 3, 6), asks("1", 4, 3, at=2.6)])
    assert _order(steps) == [
        "0: 0[0:2)",  # pre-processed: all of the prompt but the last token
        "0.4: 0[2:3)",  # iteration 0
        "1.4: 0[3:4)",
        "2.4: 0[4:5)",
        "2.6: 1[0:3)",  # ready at 3.0, in the middle of iteration 2
        "3.4: 0[5:6) 1[3:4)",
        "4.4: 0[6:7) 1[4:5)",
        "5.4: 0[7:8) 1[5:6)",
    ]
    third = _main(steps)[3]
    assert third.tokens.keys() == {"0", "1"}
    assert [step.plan.phase for step in sorted(steps, key=lambda s: s.plan.step)].count(Phase.PREPROCESSING) == 2
    assert third.plan.worker == 0
    assert {step.plan.worker for step in steps if step.plan.phase is Phase.PREPROCESSING} == {1}


def test_the_five_phases() -> None:
    """Received, pre-processing, ready, running, finished (Flover, section V)."""
    engine = _fusion(batching_preprocessors=1)
    for request in (asks("a", 3, 3), asks("b", 3, 2), asks("c", 3, 2)):
        engine.submit(request)
    run = engine.run()
    phases = []
    for _ in run:
        phases.append({name: engine.sequences[name].phase.value for name in engine.sequences})
    assert phases[:3] == [
        {"a": "ready", "b": "received", "c": "received"},  # at 0.4
        {"a": "running", "b": "ready", "c": "received"},  # at 0.8
        {"a": "running", "b": "ready", "c": "ready"},  # at 1.2, before the iteration ends
    ]
    assert phases[3] == {"a": "running", "b": "ready", "c": "ready"}
    assert all(sequence.phase is Phase.FINISHED for sequence in engine.finished.values())


def test_inline_the_main_stream_waits_while_prompts_are_computed() -> None:
    steps = run_all(
        _fusion(batching_preprocess="inline"), [asks("a", 3, 3), asks("b", 4, 2, at=0.5), asks("c", 2, 2, at=0.6)]
    )
    assert _order(steps) == [
        "0: a[0:2)",
        "0.4: a[2:3)",
        "1.4: b[0:3) c[0:1)",  # one pass for all that have arrived
        "1.8: a[3:4) b[3:4) c[1:2)",
        "2.8: a[4:5) b[4:5) c[2:3)",
    ]
    assert {step.plan.worker for step in steps} == {0}


def test_inline_newcomers_do_not_starve_running_requests() -> None:
    """A request arrives during every pass over prompts: there is still an iteration between two passes."""
    requests = [asks(f"r{i}", 3, 4, at=0.3 * i) for i in range(5)]
    steps = run_all(_fusion(batching_preprocess="inline"), requests)
    phases = [step.plan.phase for step in steps]
    assert phases.count(Phase.PREPROCESSING) >= 2
    assert all(b is Phase.RUNNING for a, b in pairwise(phases) if a is Phase.PREPROCESSING)


def test_a_prompt_of_one_token_has_nothing_to_pre_process() -> None:
    for preprocess in ("worker", "inline"):
        steps = run_all(_fusion(batching_preprocess=preprocess), [asks("a", 1, 2), asks("b", 1, 1, at=0.5)])
        assert _order(steps) == ["0: a[0:1)", "1: a[1:2) b[0:1)"]
        assert steps[0].plan.admitted == ("a",)


def test_a_short_prompt_may_overtake_a_long_one_in_pre_processing() -> None:
    """Each has a thread of its own: a request joins when it is ready, and waits for no other prompt."""

    def by_length(plan: Plan) -> float:
        return plan.num_tokens if plan.phase is Phase.PREPROCESSING else 1.0

    engine = make_engine("fusion", settings={"batching.preprocessors": 2}, cost=by_length)
    steps = run_all(engine, [asks("long", 9, 2), asks("short", 2, 2)])
    assert _order(steps)[2:] == ["1: short[1:2)", "2: short[2:3)", "8: long[8:9)", "9: long[9:10)"]


# --- several prompts


def test_a_request_of_several_prompts_waits_until_all_of_them_fit() -> None:
    engine = _fusion(memory_slots=3)
    for request in (asks("a", 2, 3), asks("b", 2, 6)):
        engine.submit(request)
    engine.submit(*[asks(f"g/{i}", 2, 2, group="g") for i in range(2)])
    engine.submit(asks("z", 2, 1))
    steps = list(engine.run())
    main = _main(steps)
    joined = {name: step.started_s for step in reversed(main) for name in step.tokens}
    left = {name: step.ended_s for step in main for name in step.finished}
    assert joined["g/0"] == joined["g/1"] >= left["a"]
    assert joined["z"] >= joined["g/0"]  # z does not overtake it, although a slot was free all along
    reasons = {reason for step in main for reason in step.plan.reasons}
    assert any(reason.code == "memory-full" and reason.sequence == "g/1" for reason in reasons)


def test_some_prompts_of_one_token_beside_longer_ones() -> None:
    prompts = [asks(f"g/{i}", 1 + 2 * i, 2, group="g") for i in range(2)]
    engine = _fusion()
    engine.submit(*prompts)
    assert _order(list(engine.run())) == ["0: g/1[0:2)", "0.4: g/0[0:1) g/1[2:3)", "1.4: g/0[1:2) g/1[3:4)"]


# --- idle buffers


def test_idle_rows_are_computed_and_counted_without_shuffle() -> None:
    requests = [asks("a", 2, 6), asks("b", 2, 2), asks("c", 2, 6)]
    settings = {"batching_preprocess": "inline"}
    for shuffle in (True, False):
        steps = _main(run_all(_fusion(memory_shuffle=shuffle, **settings), requests))
        assert [step.plan.num_tokens for step in steps] == [3, 3, 2, 2, 2, 2]
        assert [step.plan.num_idle for step in steps] == [0, 0, *([0] * 4 if shuffle else [1] * 4)]
        assert [len(step.plan.moves) for step in steps] == [0, 0, int(shuffle), 0, 0, 0]
        assert all(isinstance(step.plan.shape, Region) for step in steps)


# --- reasons


def test_reasons_of_requests_that_are_not_fused() -> None:
    steps = run_all(_fusion(memory_slots=2), [asks("a", 3, 4), asks("b", 3, 4), asks("c", 3, 1), asks("d", 3, 1)])
    reasons = [[(reason.code, reason.sequence) for reason in step.plan.reasons] for step in _main(steps)]
    full, waits = [("memory-full", "c")], [("to-preprocess", "c")]
    assert reasons == [[("to-preprocess", "b")], full, full, full, waits, [("to-preprocess", "d")], []]


# --- the count: how many iterations, and how many requests in each


def _counted(arrivals: list[float], tokens: list[int]) -> tuple[int, int]:
    """Iterations of the main stream and tokens in them, from the arrivals alone.

    One request is pre-processed at a time, and joins at the first boundary at which it is ready.
    """
    free, ready = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + BINARY
        ready.append(free)
    now, left = 0.0, dict(enumerate(tokens))
    iterations = total = 0
    while left:
        running = [i for i in left if ready[i] <= now]
        if not running:
            now = min(ready[i] for i in left)
            continue
        iterations += 1
        total += len(running)
        now += 1.0
        for i in running:
            left[i] -= 1
            if not left[i]:
                del left[i]
    return iterations, total


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 12)), min_size=1, max_size=10),
    st.booleans(),
)
def test_iterations_against_an_independent_count(crowd: list[tuple[float, int]], shuffle: bool) -> None:
    arrivals = [math.floor(arrival * 8) / 8 for arrival, _ in sorted(crowd)]  # sums with BINARY rarely tie
    tokens = [number for _, number in crowd]
    requests = [asks(f"r{i}", 3, n, at=at) for i, (at, n) in enumerate(zip(arrivals, tokens, strict=True))]
    engine = make_engine(
        "fusion",
        settings={"memory.slots": 10, "memory.shuffle": shuffle},
        cost=lambda plan: BINARY if plan.phase is Phase.PREPROCESSING else 1.0,
    )
    steps = _main(run_all(engine, requests))
    assert (len(steps), sum(step.plan.num_tokens for step in steps)) == _counted(arrivals, tokens)


# --- the right tokens
