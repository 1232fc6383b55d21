"""Priorities by hand under every policy that has the option, ageing, and who is evicted. Iterations take a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from helpers import asks, make_engine, run_all, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.techniques import TECHNIQUES

PRIORITY = {"batching.order": "priority"}
ONE_AT_A_TIME: dict[str, dict[str, Any]] = {
    "naive": {},
    "serial": {},
    "static": {"batching.max_batch": 1},
    "dynamic": {"batching.max_batch": 1},
    "baton": {"batching.max_batch": 1, "batching.preempt": False},
    "baton-pd": {"batching.max_batch": 1, "batching.preempt": False},
    "pd": {"batching.max_batch": 1},
    "orca": {"batching.max_batch": 1},
    "instances": {"batching.instances": 1},
    "fusion": {"memory.slots": 1},
    "vllm": {"batching.max_batch": 1},
    "pensieve": {"batching.max_batch": 1},
    "fluid": {"memory.host": 5, "memory.block_size": 1},
}


def _admitted(steps: Iterable[StepReport]) -> list[str]:
    return [name for step in steps for name in step.plan.admitted]


def _mixed() -> list[Request]:
    """a runs when the others arrive."""
    others = [asks(name, 3, 2, at=0.5, priority=p) for name, p in (("b", 0), ("c", 2), ("d", -1), ("e", 2), ("f", 1))]
    return [asks("a", 3, 3), *others]


@pytest.mark.parametrize("name", ONE_AT_A_TIME)
def test_the_highest_first_and_ties_by_arrival(name: str) -> None:
    steps = run_all(make_engine(name, settings=ONE_AT_A_TIME[name] | PRIORITY), _mixed())
    assert _admitted(steps) == ["a", "c", "e", "f", "b", "d"]
    steps = run_all(make_engine(name, settings=ONE_AT_A_TIME[name]), _mixed())
    assert _admitted(steps) == ["a", "b", "c", "d", "e", "f"]


def test_every_technique_with_a_queue_of_requests_has_the_option() -> None:
    without = {name for name, row in TECHNIQUES.items() if "batching.order" not in row.option_names}
    # Queues of subgraphs, buckets that take turns, and orders by what requests have computed, or will.
    assert without == {"cellular", "graph-padded", "fastserve", "srpt"}
    assert set(ONE_AT_A_TIME) == set(TECHNIQUES) - without - {"graph-merged"}
    with pytest.raises(UsageError, match="has no option 'order'"):
        make_engine("cellular", settings=PRIORITY)


def test_a_higher_priority_does_not_overtake_where_memory_is_full() -> None:
    """b, the first in the order, finds no room beside a: c, which is small, waits behind it."""
    requests = [asks("a", 4, 2), asks("c", 1, 2, at=0.5), asks("b", 8, 2, at=0.5, priority=1)]
    steps = run_all(make_engine("orca", capacity=10, settings=PRIORITY), requests)
    assert _admitted(steps) == ["a", "b", "c"]
    assert schedule(steps)[2] == "2: b[0:8)"


def test_a_token_budget_goes_to_the_highest_priority() -> None:
    """b's prompt is computed before a's next token, which has what is left."""
    settings = PRIORITY | {"batching.token_budget": 3}
    steps = run_all(make_engine("orca", settings=settings), [asks("a", 2, 3), asks("b", 5, 2, at=0.5, priority=1)])
    assert schedule(steps) == ["0: a[0:2)", "1: a[2:3) b[0:2)", "2: b[2:5)", "3: b[5:6) a[3:4)"]


def test_a_window_is_that_of_the_oldest() -> None:
    """A higher priority goes first, and does not keep the batch waiting: the window opened with a."""
    settings = PRIORITY | {"batching.window": "2s", "batching.max_batch": 3}
    steps = run_all(make_engine("dynamic", settings=settings), [asks("a", 2, 1), asks("b", 2, 1, at=1.5, priority=1)])
    assert schedule(steps) == ["2: b[0:2) a[0:2)"]


# --- ageing


def test_ageing_by_hand() -> None:
    """A level for every two seconds: a, which has waited for four, goes before b but not before c."""
    requests = [
        asks("first", 2, 5),
        asks("a", 2, 1, at=0.25),
        asks("b", 2, 1, at=4.5, priority=2),
        asks("c", 2, 1, at=4.0, priority=2),
    ]
    for ageing, order in (("2s", ["c", "a", "b"]), ("3s", ["c", "b", "a"]), ("1s", ["a", "c", "b"])):
        steps = run_all(make_engine("serial", settings=PRIORITY | {"batching.ageing": ageing}), requests)
        assert _admitted(steps) == ["first", *order]


def _starving(more: int, **options: Any) -> int:
    """How many of a stream of high priorities are served before one of low priority: a new one comes every second."""
    stream = [asks(f"h{i}", 2, 1, at=0.9 * i, priority=3) for i in range(more)]
    low = asks("low", 2, 1, at=0.5)
    steps = run_all(make_engine("serial", settings=PRIORITY | options), [*stream, low])
    return _admitted(steps).index("low")


def test_without_ageing_a_stream_of_higher_priorities_starves_the_lowest() -> None:
    assert _starving(12) == 12
    assert _starving(24) == 24


def test_with_ageing_the_wait_is_bounded_however_long_the_stream() -> None:
    assert _starving(12, **{"batching.ageing": "1s"}) == _starving(24, **{"batching.ageing": "1s"}) == 4


priorities = st.lists(st.tuples(st.integers(0, 40), st.integers(-2, 3)), min_size=2, max_size=10)


@settings(max_examples=40, deadline=None)
@given(priorities, st.sampled_from(["serial", "orca", "vllm", "static"]), st.sampled_from([0.25, 1.0, 4.0]))
def test_none_is_overtaken_by_what_comes_much_later(drawn: list[tuple[int, int]], name: str, ageing: float) -> None:
    """By n more levels only within n times the ageing: in quarters of a second, so that nothing is rounded."""
    requests = {f"r{i}": asks(f"r{i}", 2, 2, at=at / 4, priority=p) for i, (at, p) in enumerate(drawn)}
    settings = PRIORITY | {"batching.ageing": ageing} | ONE_AT_A_TIME[name]
    order = _admitted(run_all(make_engine(name, settings=settings), requests.values()))
    for place, first in enumerate(order):
        for second in order[place + 1 :]:
            one, two = requests[first], requests[second]
            if one.arrival_s > two.arrival_s:
                assert one.arrival_s < two.arrival_s + (one.priority - two.priority) * ageing


# --- eviction


def _vllm(blocks: int, **settings: Any) -> Any:
    options = {"memory.block_size": 2, "memory.watermark": 0.0, **PRIORITY, **settings}
    return make_engine("vllm", capacity=2 * blocks, settings=options)


def test_the_lowest_priority_is_evicted_first_and_of_equals_the_newest() -> None:
    """Three blocks, all full: the oldest is of the lowest priority, and has to go; the newest of the rest follows."""
    requests = [asks("low", 2, 3), asks("old", 2, 3, priority=1), asks("new", 2, 3, priority=1)]
    steps = run_all(_vllm(3), requests)
    assert schedule(steps)[:2] == ["0: old[0:2) new[0:2) low[0:2)", "1: old[2:3)"]
    assert steps[1].plan.evicted == ("low", "new")
    finished = [name for step in steps for name in step.finished]
    assert finished == ["old", "new", "low"]


def test_an_evicted_sequence_returns_ahead_of_its_own_level() -> None:
    """b is evicted, and back before d, which arrived later with the same priority; c of a higher one overtakes it."""
    requests = [
        asks("a", 2, 4, priority=2),
        asks("b", 2, 4),
        asks("d", 2, 1, at=0.5),
        asks("c", 2, 1, at=1.5, priority=1),
    ]
    steps = run_all(_vllm(3, **{"batching.max_batch": 2}), requests)
    assert [step.plan.evicted for step in steps if step.plan.evicted] == [("b",)]
    assert _admitted(steps)[:2] == ["a", "b"]
    assert _admitted(steps)[2:] == ["c", "b", "d"]
