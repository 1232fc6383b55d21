"""The longest gaps between two tokens, and what happened in them."""

from __future__ import annotations

import pytest
from events import request
from runs_told import BLOCK, HEADER, NO_ROOM, apart, cells, padded, preempted, told

from minifuse.trace.gaps import Gap, longest_gaps
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.waits import reasons_of_waits


def gaps(events: list[Event], most: int = 10) -> list[Gap]:
    history = History.of(events)
    return longest_gaps(history, reasons_of_waits(history), most)


def test_an_eviction_is_told_with_its_reasons() -> None:
    first, *others = gaps(preempted())
    assert (first.requests, first.index, first.start_s, first.end_s) == (["a"], 2, 2.0, 5.0)
    assert (first.suspended_s, first.own_s, first.others_s, first.nothing_s) == (2.0, 1.0, 0.0, 0.0)
    assert first.why == [NO_ROOM, BLOCK]
    assert (first.own, first.computed, first.others) == (1, 5, 2)
    assert first.prompts == {"b": 2}
    assert [(gap.requests, gap.start_s, gap.seconds) for gap in others] == [
        (["a"], 1.0, 1.0),
        (["b"], 3.0, 1.0),
        (["a"], 5.0, 1.0),
    ]


def test_only_so_many_are_told() -> None:
    assert [gap.seconds for gap in gaps(preempted(), most=2)] == [3.0, 1.0]


def test_waiting_to_join() -> None:
    first, *_ = gaps(apart())
    assert (first.requests, first.ready_s, first.own_s, first.others_s) == (["a"], 1.0, 1.0, 0.0)
    assert first.why == ["not admitted: each of 1 row has a sequence"]


def test_prompts_beside_a_token() -> None:
    """b's second gap is the iteration in which worker 1 computes the prompt of a."""
    first = next(gap for gap in gaps(apart()) if gap.requests == ["b"])
    assert (first.own_s, first.others_s, first.prompts) == (1.0, 0.0, {"a": 4})


def test_gaps_at_the_same_times_are_told_once() -> None:
    events = padded()
    events[4]["finished"] = {}
    events[5] = told(2, [["a", 2, 3], ["b", 2, 3]], {"a": [7], "b": [7]}, finished={"b": "length"}, step=1)
    assert [gap.requests for gap in gaps(events)] == [["a", "b"], ["a"]]


def test_moves_of_its_own_iterations_are_told() -> None:
    events = preempted()
    events[8]["moves"] = [["swap_in", 0, 0, 4, "host", "device", "first", 0]]
    events[8]["wall"] |= {"moving_s": 0.25, "transfers": {"exposed_s": 0.5}}
    first, *_ = gaps(events)
    assert (dict(first.moves), first.moving_s, first.exposed_s) == ({"swap_in": 4}, 0.25, 0.5)


def test_time_in_which_nothing_ran() -> None:
    events = padded()
    events[6]["wall"] = {"start_s": 3.5, "end_s": 4.5}
    first, *_ = gaps(events)
    assert (first.seconds, first.nothing_s, first.own_s) == (1.5, 0.5, 1.0)


def test_cells_without_tokens_have_gaps_between_their_iterations() -> None:
    found = gaps(cells())
    assert [(gap.requests, gap.seconds, gap.others_s) for gap in found] == [
        (["b"], 3.0, 2.0),
        (["a"], 1.0, 0.0),
        (["a"], 1.0, 0.0),
    ]


def test_an_iteration_with_it_that_ends_after_the_gap_is_of_the_next_one() -> None:
    """Two workers compute nodes of a: worker 1 one from 0.5 to 2.5 s, worker 0 others until 1 s, and from 2 to 3 s."""
    at = [(0.0, 1.0), (0.5, 2.5), (2.0, 3.0)]
    steps = [
        told(i, [["a", i, i + 1, "leaf"]], {}, places=[[[], i]], at=times, worker=i % 2, admitted=["a"] * (not i))
        for i, times in enumerate(at)
    ]
    early, late = gaps(
        [HEADER, request("a", 0.0, 3), *steps, {"event": "end", "unfinished": [], "wall": {"end_s": 3.0}}]
    )
    assert (early.start_s, early.end_s, early.own, early.own_s) == (1.0, 2.5, 1, 1.5)
    assert (late.start_s, late.end_s, late.own, late.own_s) == (2.5, 3.0, 1, 0.5)


@pytest.mark.parametrize("events", [preempted(), padded(), apart(), cells()])
def test_the_parts_add_up(events: list[Event]) -> None:
    for gap in gaps(events):
        parts = gap.own_s + gap.suspended_s + gap.ready_s + gap.others_s + gap.nothing_s
        assert parts == pytest.approx(gap.seconds)
