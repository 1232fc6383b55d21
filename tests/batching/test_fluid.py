"""No batch size: as many requests as there are tokens in an iteration (FluidInfer, 4.1)."""

from __future__ import annotations

from helpers import asks, make_engine, run_all, schedule


def test_all_join_at_once() -> None:
    steps = run_all(make_engine("fluid", capacity=2000), [asks(f"r{i}", 1 + i % 3, 2) for i in range(100)])
    assert [len(step.plan.sequences) for step in steps] == [100, 100]


def test_an_iteration_has_no_more_tokens_of_prompts_than_saturate() -> None:
    """Budget 6: a prompt is cut to what others leave of it, and the next waits. Single tokens do not count."""
    engine = make_engine("fluid", settings={"batching.token_budget": 6})
    steps = run_all(engine, [asks("a", 2, 4), asks("b", 9, 2), asks("c", 2, 3)])
    assert schedule(steps) == [
        "0: a[0:2) b[0:4)",
        "1: a[2:3) b[4:9) c[0:1)",
        "2: a[3:4) b[9:10) c[1:2)",
        "3: a[4:5) c[2:3)",
        "4: c[3:4)",
    ]
    (reason,) = steps[0].plan.reasons
    assert (reason.code, reason.sequence) == ("budget-spent", "c")


def test_single_tokens_go_before_a_prompt_of_higher_priority() -> None:
    """So that no prompt, in however many pieces, delays the next token of a request that runs."""
    engine = make_engine("fluid", settings={"batching.token_budget": 3, "batching.order": "priority"})
    steps = run_all(engine, [asks("a", 1, 5), asks("b", 9, 1, at=0.5, priority=3)])
    assert schedule(steps)[1:4] == ["1: a[1:2) b[0:3)", "2: a[2:3) b[3:6)", "3: a[3:4) b[6:9)"]


def test_the_budget_does_not_limit_how_many_decode() -> None:
    """Budget 4: two prompts of two tokens in each iteration, beside all requests that have begun."""
    engine = make_engine("fluid", settings={"batching.token_budget": 4})
    steps = run_all(engine, [asks(f"r{i}", 2, 4) for i in range(7)])
    assert [len(step.plan.work) for step in steps] == [2, 4, 6, 7, 5, 3, 1]


def test_a_prompt_that_is_cut_to_one_token_counts() -> None:
    """Budget 3: two tokens of a's prompt, and one of b's; then two of c's, beside the last of b's."""
    engine = make_engine("fluid", settings={"batching.token_budget": 3})
    for name in "ab":
        engine.submit(asks(name, 2, 2))
    engine.submit(asks("c", 2, 2))
    plans = [step.plan for step in engine.run()]
    assert [(work.sequence, work.num_tokens) for work in plans[0].work] == [("a", 2), ("b", 1)]
    assert [(work.sequence, work.num_tokens) for work in plans[1].work] == [("a", 1), ("b", 1), ("c", 2)]
