"""Schedules of the batching policies by hand: every iteration takes one second."""

from __future__ import annotations

from helpers import asks, make_engine, run_all, schedule

from minifuse.core.report import KVUsage, StepReport
from minifuse.core.shapes import Rectangle

FOUR = [asks("a", 2, 3), asks("b", 3, 1), asks("d", 1, 2), asks("c", 2, 2, at=0.5)]


def finish_times(steps: list[StepReport]) -> dict[str, float]:
    return {name: step.ended_s for step in steps for name in step.finished}


def test_static_by_hand() -> None:
    """a and b start together and a goes on beside b's finished row; d and c wait for the whole batch."""
    steps = run_all(make_engine("static", settings={"batching.max_batch": 2}), FOUR)
    assert schedule(steps) == [
        "0: a[0:2) b[0:3)",
        "1: a[2:3)",
        "2: a[3:4)",
        "3: d[0:1) c[0:2)",
        "4: d[1:2) c[2:3)",
    ]
    assert [step.plan.num_idle for step in steps] == [1, 1, 1, 1, 0]
    assert [step.plan.shape for step in steps] == [
        Rectangle(0, 2, 5, 0, 3),
        Rectangle(0, 2, 5, 3, 4),
        Rectangle(0, 2, 5, 4, 5),
        Rectangle(0, 2, 3, 0, 2),
        Rectangle(0, 2, 3, 2, 3),
    ]
    assert finish_times(steps) == {"b": 1, "a": 3, "d": 5, "c": 5}
    assert [step.plan.admitted for step in steps] == [("a", "b"), (), (), ("d", "c"), ()]
    assert [[(r.code, r.sequence) for r in step.plan.reasons] for step in steps] == [
        [("batch-full", "d")], [("batch-running", "d")], [("batch-running", "d")], [], [],
    ]  # fmt: skip
    # Rows times columns written, of rows times columns set aside: a finished row's KV grows with the batch.
    assert [step.usage for step in steps] == [
        KVUsage(6, 10, 400), KVUsage(8, 10, 400), KVUsage(10, 10, 400), KVUsage(4, 6, 400), KVUsage(6, 6, 400),
    ]  # fmt: skip


def test_orca_by_hand() -> None:
    """b leaves after one iteration and d takes its place; c joins when a and d have left."""
    steps = run_all(make_engine("orca", settings={"batching.max_batch": 2}), FOUR)
    assert schedule(steps) == [
        "0: a[0:2) b[0:3)",
        "1: a[2:3) d[0:1)",
        "2: a[3:4) d[1:2)",
        "3: c[0:2)",
        "4: c[2:3)",
    ]
    assert [step.plan.num_idle for step in steps] == [0] * 5
    assert finish_times(steps) == {"b": 1, "a": 3, "d": 3, "c": 5}
    assert [[str(r) for r in step.plan.reasons] for step in steps] == [
        ["d not admitted: the batch has 2 requests"],
        ["c not admitted: the batch has 2 requests"],
        ["c not admitted: the batch has 2 requests"],
        [],
        [],
    ]
    assert [step.usage for step in steps][:2] == [KVUsage(5, 7, 400), KVUsage(4, 6, 400)]


def test_serial_by_hand() -> None:
    steps = run_all(make_engine("serial"), FOUR)
    assert schedule(steps) == [
        "0: a[0:2)", "1: a[2:3)", "2: a[3:4)", "3: b[0:3)", "4: d[0:1)", "5: d[1:2)", "6: c[0:2)", "7: c[2:3)",
    ]  # fmt: skip


def test_naive_by_hand() -> None:
    """Everything is computed again for every token."""
    steps = run_all(make_engine("naive"), FOUR[:2])
    assert schedule(steps) == ["0: a[0:2)", "1: a[0:3)", "2: a[0:4)", "3: b[0:3)"]


def test_a_token_budget_cuts_a_long_prompt() -> None:
    engine = make_engine("orca", settings={"batching.token_budget": 4})
    steps = run_all(engine, [asks("long", 6, 2), asks("short", 2, 2)])
    assert schedule(steps) == ["0: long[0:4)", "1: long[4:6) short[0:2)", "2: long[6:7) short[2:3)"]
    assert [step.tokens for step in steps] == [{}, {"long": (-1,), "short": (-1,)}, {"long": (-1,), "short": (-1,)}]
    assert [r.code for r in steps[0].plan.reasons] == ["budget-spent"]


def test_dynamic_by_hand() -> None:
    """The oldest request's arrival opens the window; a full batch starts at once; time spent behind a batch counts."""
    engine = make_engine("dynamic", settings={"batching.window": "2s", "batching.max_batch": 3})
    requests = [
        asks("a", 2, 2, at=0.5),
        asks("b", 2, 2, at=1.0),
        asks("c", 2, 3, at=5.0),
        asks("d", 2, 3, at=5.5),
        asks("e", 2, 3, at=6.0),
        asks("f", 2, 1, at=6.5),
        asks("g", 2, 1, at=8.75),
    ]
    steps = run_all(engine, requests)
    assert schedule(steps) == [
        "2.5: a[0:2) b[0:2)",
        "3.5: a[2:3) b[2:3)",
        "6: c[0:2) d[0:2) e[0:2)",
        "7: c[2:3) d[2:3) e[2:3)",
        "8: c[3:4) d[3:4) e[3:4)",
        "9: f[0:2) g[0:2)",
    ]
    waits = [event for event in engine.trace.events() if event["event"] == "wait"]
    spans = [(event["wall"]["start_s"], event["wall"]["end_s"]) for event in waits]
    assert spans == [(0.5, 1.0), (1.0, 2.5), (5.0, 5.5), (5.5, 6.0)]
    assert waits[1]["reasons"] == [
        ["window-open", "a", "not admitted: 2 wait and the window of 2 s closes at 2.500 s"],
    ]


def test_a_window_of_zero_is_static() -> None:
    with_window = make_engine("dynamic", settings={"batching.window": "0s", "batching.max_batch": 2})
    assert schedule(run_all(with_window, FOUR)) == schedule(
        run_all(make_engine("static", settings={"batching.max_batch": 2}), FOUR)
    )
