"""Every second of waiting has a reason."""

from __future__ import annotations

import math

from runs_told import BLOCK, FULL, NO_ROOM, apart, padded, preempted

from minifuse.trace import Event
from minifuse.views.history import History
from minifuse.views.waits import reasons_of_waits, waited_for


def seconds(events: list[Event]) -> dict[str, dict[str, float]]:
    return {one.code: one.seconds for one in waited_for(reasons_of_waits(History.of(events)))}


def test_reasons_hold_until_the_next_one() -> None:
    assert seconds(preempted()) == {
        "batch-full": {"b": 2.0, "c": 1.0},
        "behind": {"c": 1.0},  # a was told that it lacks memory
        "evicted": {"a": 1.0},
        "memory-full": {"a": 1.0},
        "no-reason": {"c": 1.0},
        "not-asked": {"c": 0.5},
    }


def test_the_longest_comes_first_with_its_sentence() -> None:
    first, *others = waited_for(reasons_of_waits(History.of(preempted())))
    assert (first.code, first.total_s, first.longest) == ("batch-full", 3.0, ("b", 2.0))
    assert first.sentence == f"b {FULL}"
    assert [one.sentence for one in others] == [
        "c not considered: none is admitted behind a",
        f"a {NO_ROOM}",
        f"a {BLOCK}",
        "c not admitted: others ran or waited, and no reason was given",
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


def test_with_a_reason_for_everyone_nobody_is_counted_as_behind() -> None:
    events = preempted()
    events[7]["reasons"].append(["other", "c", "not admitted: its own reason"])  # as with --why
    assert seconds(events)["other"] == {"c": 1.0}
    assert "behind" not in seconds(events)
