"""Every second of waiting has a reason."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from crowds import told_and_plain
from events import request
from runs_told import BLOCK, FULL, HEADER, NO_ROOM, apart, padded, preempted, told

from minifuse.techniques import TECHNIQUES
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.waits import UNASKED, UNTOLD, Segment, Told, _Sums, reasons_of_waits, waited_for


def seconds(events: list[Event]) -> dict[str, dict[str, float]]:
    return {one.code: one.seconds for one in waited_for(reasons_of_waits(History.of(events)))}


def told_of(name: str, events: list[Event]) -> list[tuple[str, float, float]]:
    """For what a request waited, and when."""
    return [(one.code, one.start_s, one.end_s) for one in reasons_of_waits(History.of(events)).of(name)]


def test_reasons_hold_until_the_next_one() -> None:
    assert seconds(preempted()) == {
        "batch-full": {"b": 2.0, "c": 1.0},
        "behind": {"c": 1.0},  # a was told that it lacks memory
        "evicted": {"a": 1.0},
        "evicting": {"c": 1.0},
        "memory-full": {"a": 1.0},
        "not-asked": {"c": 0.5},
    }


def test_the_longest_comes_first_with_its_sentence() -> None:
    first, *others = waited_for(reasons_of_waits(History.of(preempted())))
    assert (first.code, first.total_s, first.longest) == ("batch-full", 3.0, ("b", 2.0))
    assert first.sentence == f"b {FULL}"
    assert [one.sentence for one in others] == [
        "c not considered: worker 0 admits none behind a",
        f"a {NO_ROOM}",
        "c not admitted: worker 0 evicts a",
        f"a {BLOCK}",
        "c came while an iteration ran or was chosen: nothing is decided before that has ended",
    ]


def test_all_waiting_is_accounted_for() -> None:
    for events in (preempted(), padded(), apart()):
        history = History.of(events)
        waited = sum(wait.end_s - wait.start_s for story in history.stories.values() for wait in story.waits)
        assert math.isclose(sum(one.total_s for one in waited_for(reasons_of_waits(history))), waited)
        assert waited > 0


def test_a_pause_gives_reasons_as_well() -> None:
    assert seconds(padded()) == {"window-open": {"a": 1.0}, "not-asked": {"b": 0.5}}


def test_waiting_to_join_has_the_reason_of_that_time() -> None:
    assert seconds(apart()) == {"rows-full": {"a": 1.0}}


def test_a_reason_of_its_own_stays_where_others_are_passed_over() -> None:
    events = preempted()
    events[7]["reasons"].append(["other", "c", "not admitted: its own reason"])
    assert seconds(events)["other"] == {"c": 1.0}
    assert "behind" not in seconds(events)


def test_that_it_was_not_in_a_batch_replaces_no_reason_that_says_more() -> None:
    """In steps 3 and 4 the policy says nothing; c has had a reason before, b, which comes at 2.5 s, has none."""
    events = preempted()
    events[6]["reasons"].append(["batch-full", "c", FULL])
    events[7]["reasons"], events[8]["reasons"] = [], []
    events[2]["arrival_s"] = 2.5
    events[6] |= {"work": [["a", 4, 5]], "tokens": {"a": [7]}, "admitted": [], "evicted": [], "moves": []}
    events[7] |= {"work": [["a", 5, 6]], "tokens": {"a": [7]}, "finished": {}}
    events[8] |= {"work": [["a", 6, 7]], "admitted": []}
    events[9] |= {"work": [["b", 0, 2]], "places": [[0, 8]], "tokens": {"b": [7]}, "admitted": ["b"], "finished": {}}
    assert told_of("b", events) == [
        ("not-asked", 2.5, 3.0),
        ("not-in-batch", 3.0, 5.0),
    ]
    assert told_of("c", events)[-1] == ("batch-full", 2.0, 6.0)


def test_a_wait_behind_another_says_behind_whom_as_that_changes() -> None:
    events = preempted()
    events[1:3] = [*events[1:3], request("d", 0.0, 1)]
    texts = [(one.text, one.start_s, one.end_s) for one in reasons_of_waits(History.of(events)).of("d")]
    assert texts == [
        ("not considered: worker 0 admits none behind b", 0.0, 2.0),
        ("not admitted: worker 0 evicts a", 2.0, 3.0),
        ("not considered: worker 0 admits none behind a", 3.0, 4.0),
        ("not considered: worker 0 admits none behind c", 4.0, 6.0),
    ]


def test_who_is_evicted_without_a_reason_is_not_said_to_wait_for_its_own_eviction() -> None:
    events = preempted()
    events[6]["reasons"] = []
    assert told_of("a", events) == [("no-reason", 2.0, 3.0), ("memory-full", 3.0, 4.0)]


def test_who_is_evicted_while_it_waits_to_join_waits_for_that_from_then_on() -> None:
    events = apart()
    events[6] |= {"evicted": ["a"], "reasons": [["evicted", "a", NO_ROOM]]}
    events[7] |= {"admitted": ["a"]}
    events[6]["wall"]["start_s"] = 2.5
    assert told_of("a", events) == [("not-asked", 2.0, 2.5), ("evicted", 2.5, 3.0)]


def test_a_decision_of_another_worker_at_the_same_time_comes_after() -> None:
    """Worker 0 stops at b, which worker 1 admits a moment later: c was behind b."""
    full = ["batch-full", "b", FULL]
    events: list[Event] = [
        HEADER,
        *(request(name, 0.0, 2) for name in "abc"),
        told(0, [["a", 0, 2]], {"a": [7]}, admitted=["a"], reasons=[full], finished={"a": "stop"}),
        told(1, [["b", 0, 2]], {"b": [7]}, admitted=["b"], worker=1, at=(0.0, 1.0), finished={"b": "stop"}),
        told(2, [["c", 0, 2]], {"c": [7]}, admitted=["c"], at=(1.0, 2.0), finished={"c": "stop"}),
        {"event": "end", "unfinished": [], "wall": {"end_s": 2.0}},
    ]
    assert told_of("c", events) == [("behind", 0.0, 1.0)]


# --- as the engine tells it, and as it is found out afterwards


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_run_that_tells_of_each_says_what_is_found_out_of_one_that_does_not(name: str) -> None:
    told, plain = (reasons_of_waits(History.of(events)) for events in told_and_plain(name))
    assert {name: [*told.of(name)] for name in told.pieces} == {name: [*plain.of(name)] for name in plain.pieces}
    assert told.given == plain.given  # all that the engine has added was known


@pytest.mark.parametrize("name", TECHNIQUES)
def test_the_shared_lists_tell_what_following_each_request_tells(name: str) -> None:
    history = History.of(told_and_plain(name)[1])
    waits, slow = reasons_of_waits(history), one_by_one(history)
    assert {name: [*waits.of(name)] for name in waits.pieces} == slow
    for one in waited_for(waits):
        for request_id, total in one.seconds.items():
            parts = [segment.seconds for segment in slow[request_id] if segment.code == one.code]
            assert math.isclose(total, math.fsum(parts), abs_tol=1e-12)


def one_by_one(history: History) -> dict[str, list[Segment]]:
    """What each request waited for, found out for each apart, from decision to decision."""
    found: dict[str, list[Segment]] = {}
    for name, story in history.stories.items():
        for wait in story.waits:
            reason = UNTOLD if wait.kind == "suspended" else UNASKED
            changes = [(wait.start_s, *reason)]
            for decision in history.decisions:
                if not wait.start_s <= decision.at_s <= wait.end_s or name in decision.joining:
                    continue
                there = [
                    other
                    for other, one in history.stories.items()
                    if other not in decision.joining
                    and any(waited.start_s <= decision.at_s <= waited.end_s for waited in one.waits)
                ]
                own = {other: (code, text) for code, other, text in decision.reasons}
                new = decision.choice.passed_over(decision.reasons, there)
                if name in own:
                    reason = own[name]
                elif name in decision.choice.evicted:
                    continue
                elif new[0] in ("behind", "evicting") or reason in (UNASKED, UNTOLD) or reason[0] == "not-in-batch":
                    reason = new
                changes.append((decision.at_s, *reason))
            kept: list[Segment] = []
            for (start_s, code, text), (end_s, *_) in pairwise([*changes, (wait.end_s, "", "")]):
                if kept and kept[-1][1:3] == (code, text):
                    start_s = kept.pop().start_s
                kept.append(Segment(name, code, text, start_s, end_s))
                if start_s == end_s:
                    kept.pop()
            found.setdefault(name, []).extend(kept)
    return {name: segments for name, segments in found.items() if segments}


def test_what_a_shared_list_sums_up_to_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = reasons_of_waits(History.of(told_and_plain("orca")[1]))
    following = [piece for pieces in waits.pieces.values() for piece in pieces if piece.told in waits.passed]
    assert len(following) > 2
    made: list[list[Told]] = []

    class Counted(_Sums):
        def __init__(self, told: list[Told]) -> None:
            made.append(told)
            super().__init__(told)

    monkeypatch.setattr("minifuse.trace.waits._Sums", Counted)
    waited_for(waits)
    assert [sum(told is shared for told in made) for shared in waits.passed] == [1, 1]
