"""The story of every request, as the iterations tell it."""

from __future__ import annotations

from runs_told import apart, cells, preempted

from minifuse.trace.history import History, Wait
from minifuse.trace.log import Event


def test_waits_begin_with_arrivals_and_evictions_and_end_with_admissions() -> None:
    stories = History.of(preempted()).stories
    assert stories["a"].waits == [Wait("suspended", 2.0, 4.0)]
    assert stories["b"].waits == [Wait("waiting", 0.0, 2.0)]
    assert stories["c"].waits == [Wait("waiting", 1.5, 5.0)]
    assert stories["a"].evictions == [(2, 4)]
    assert [(story.ended_s, story.reason) for story in stories.values()] == [
        (6.0, "stop"),
        (4.0, "length"),
        (6.0, "length"),
    ]


def test_a_prompt_computed_apart_waits_to_join() -> None:
    assert History.of(apart()).stories["a"].waits == [Wait("ready", 2.0, 3.0)]


def test_who_is_evicted_while_it_is_ready_is_suspended_from_then_on() -> None:
    events = apart()
    events[6] |= {"evicted": ["a"], "wall": {"start_s": 2.5, "end_s": 3.0}}
    events[7]["admitted"] = ["a"]
    assert History.of(events).stories["a"].waits == [Wait("ready", 2.0, 2.5), Wait("suspended", 2.5, 3.0)]


def test_who_has_not_ended_waits_to_the_end_of_the_trace() -> None:
    stories = History.of(preempted()[:7]).stories  # up to step 2, at 3 s
    assert stories["a"].waits == [Wait("suspended", 2.0, 3.0)]
    assert stories["c"].waits == [Wait("waiting", 1.5, 3.0)]
    assert stories["a"].ended_s is None


def test_iterations_are_in_the_order_of_their_start_and_not_of_their_end() -> None:
    events = apart()
    events.insert(3, events.pop(5))  # worker 1 was told of first
    assert [one.step for one in History.of(events).iterations] == [0, 1, 2, 3, 4]


def test_aborted_and_refused_requests() -> None:
    aborted: Event = {"event": "aborted", "id": "c", "wall": {"end_s": 2.5}}
    late: Event = {"event": "refused", "id": "b", "why": "too long", "received": True}
    again: Event = {"event": "refused", "id": "a", "why": "there is one of this name"}
    history = History.of([*preempted()[:3], again, *preempted()[4:5], aborted, late])
    assert (history.stories["c"].reason, history.stories["c"].ended_s) == ("aborted", 2.5)
    assert history.stories.keys() == {"a", "c"}
    assert [name for name, _ in history.refused] == ["a", "b"]


def test_a_turn_that_has_not_come_waits_for_nothing() -> None:
    turn: Event = {"event": "request", "id": "d", "arrival_s": 0.0, "prompt_tokens": 1, "after": "a"}
    assert History.of([*preempted(), turn]).stories["d"].waits == []
    measured = {**turn, "wall": {"arrival_s": 5.0}}
    assert History.of([*preempted(), measured]).stories["d"].waits == [Wait("waiting", 5.0, 6.0)]


def test_nodes_are_counted_by_type() -> None:
    history = History.of(cells())
    assert [one.cells for one in history.iterations] == [{"encoder": 2}, {"encoder": 1}, {"decoder": 1}, {"decoder": 1}]
    assert history.of_cells
    assert not history.has_tokens
