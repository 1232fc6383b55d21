"""Contests: turns, clocks, and a request that is refused."""

from __future__ import annotations

from functools import partial

import pytest
from helpers import asks

from minifuse.core.errors import UsageError
from minifuse.execute.timing import take_turns, time_in_turns
from minifuse.model.text.load import resolve_text
from minifuse.papers.contest import Bench
from minifuse.papers.experiment import Conditions


def test_contenders_take_turns_and_every_round_begins_with_another_one() -> None:
    order: list[str] = []
    times = {"a": [5.0, 1.0, 3.0], "b": [2.0, 9.0, 4.0]}

    def run(name: str, number: int) -> float:
        order.append(name)
        return times[name][number]

    assert take_turns({name: partial(run, name) for name in "ab"}, rounds=3, first=1) == times
    assert "".join(order) == "baabba"


def test_timed_contenders_take_turns_after_a_round_that_does_not_count() -> None:
    order: list[str] = []
    taken = time_in_turns({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert order == [*"cab", *"abc", *"bca", *"cab"]
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(second > 0 for seconds in taken.values() for second in seconds)


def test_a_refused_request_is_no_result() -> None:
    bench = Bench(Conditions(scale="paper"), resolve_text("random:small"), "cpu")
    with pytest.raises(UsageError, match="may need KV for"):
        bench.serve("fusion", [asks("r0", new=9)], 3, {"memory.slots": 1})
