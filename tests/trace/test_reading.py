"""Traces that are whole, cut off, empty, of another version, or no traces."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from runs_told import HEADER, beside, preempted

from minifuse.core.errors import UsageError
from minifuse.trace.history import History
from minifuse.trace.log import SCHEMA, Event
from minifuse.trace.reading import load_trace, parse_trace

WHOLE = "".join(json.dumps(event) + "\n" for event in preempted())


def parsed(text: str) -> tuple[list[Event], str | None]:
    return parse_trace(text, "run.jsonl")


def test_a_whole_trace_needs_no_notice() -> None:
    assert parsed(WHOLE) == (preempted(), None)


def test_one_cut_off_in_a_line_is_read_up_to_there() -> None:
    events, notice = parsed(WHOLE[:-9])
    assert events == preempted()[:-1]
    assert notice == f"run.jsonl was cut off in line {len(events) + 1}: what stands before it is shown."


def test_one_cut_off_anywhere_is_read_up_to_there() -> None:
    for length in range(WHOLE.index("\n"), len(WHOLE)):
        events, notice = parsed(WHOLE[:length])
        assert events == preempted()[: len(events)]
        assert (notice is None) == (len(events) == len(preempted()))


def test_one_cut_off_within_its_first_line_has_nothing_to_show() -> None:
    for length in range(WHOLE.index("\n")):
        with pytest.raises(UsageError, match=r"^run\.jsonl (is|was) .*\.$"):
            parsed(WHOLE[:length])


def test_one_that_ends_between_two_lines_before_its_run_does() -> None:
    events, notice = parsed(WHOLE[: WHOLE.rindex('{"event": "end"')])
    assert notice == f"run.jsonl ends before its run does, with line {len(events)}: what it has is shown."


def test_one_that_lacks_iterations_says_which() -> None:
    steps = [i for i, event in enumerate(preempted()) if event["event"] == "step"]

    def notice(*gone: int) -> str | None:
        events = [event for i, event in enumerate(preempted()) if i not in {steps[number] for number in gone}]
        return parsed("\n".join(map(json.dumps, events)))[1]

    rest = "a line was taken out of it, and what it has is shown."
    assert notice() is None
    for number in range(5):
        assert notice(number) == f"run.jsonl lacks iteration {number}: {rest}"
    assert notice(1, 2) == f"run.jsonl lacks iterations 1 to 2: {rest}"
    assert notice(0, 2, 3) == f"run.jsonl lacks iterations 0 and 2 to 3: {rest}"
    assert notice(5) == "run.jsonl lacks the iteration in which a ended: what it has is shown."


def test_one_that_lacks_many_names_some_however_they_are_numbered() -> None:
    events = preempted()
    for event, number in zip([e for e in events if e["event"] == "step"], (0, 2, 4, 6, 10**15, 8), strict=True):
        event["step"] = number
    notice = parsed("\n".join(map(json.dumps, events)))[1]
    assert notice is not None
    assert "lacks iterations 1, 3, 5 and more: " in notice


def test_whatever_an_id_or_a_number_is_a_trace_is_read() -> None:
    for wrong in (None, [], {}, True, "x"):
        events = preempted()
        events[1]["id"], events[4]["step"], events[5]["step"] = wrong, wrong, -1
        events.insert(-1, {"event": "aborted", "id": wrong, "wall": {"end_s": 5.0}})
        notice = parsed("\n".join(map(json.dumps, events)))[1]
        assert notice is not None
        assert "lacks iteration" in notice


def test_times_that_run_backwards_are_noticed() -> None:
    """Side by side they may be, on several workers: `beside`."""
    assert parsed("\n".join(map(json.dumps, beside())))[1] is None
    events = preempted()
    events[7]["wall"] = {"start_s": 2.5, "end_s": 4.0}
    assert parsed("\n".join(map(json.dumps, events)))[1] == (
        "run.jsonl has times that run backwards (iteration 3 begins before the last one of worker 0 has ended): "
        "what it has is shown."
    )


def test_of_a_run_that_was_interrupted_iterations_may_be_missing() -> None:
    """Those that ran then are in no trace; others, of other workers, may have begun after them."""
    events = preempted()
    del events[6]
    events[-1]["unfinished"] = ["a"]
    assert parsed("\n".join(map(json.dumps, events)))[1] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.jsonl is empty, and is not a trace: give"),
        ("\n \n", "run.jsonl is empty, and is not a trace: give"),
        ("hello\n", "is not a trace"),
        ('{"answers": []}\n', "is not a trace"),
        ("[1, 2]\n", "is not a trace"),
        ('{"event": "step"}\n', "is not a trace"),
        ('{"event": "run", "schema": "minifuse.tr', "cut off within its first line"),
        (
            json.dumps(HEADER | {"schema": "minifuse.trace/1"}),
            f"is not a trace of version {SCHEMA}, which this minifuse reads, but of version minifuse.trace/1: write",
        ),
        (WHOLE.replace('{"event": "request"', '{"event" "request"', 1), "Line 2 of run.jsonl is not JSON"),
        (WHOLE.replace('{"event": "request"', '{"even": "request"', 1), "Line 2 of run.jsonl is not an event"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(text)
    assert words in str(caught.value)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(WHOLE))
    assert load_trace("-").events == preempted()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not a trace"):
        load_trace(path)


def test_events_of_a_kind_that_is_not_known_are_passed_over() -> None:
    events = preempted()
    events.insert(3, {"event": "greeting", "id": "a", "text": "hello"})
    assert History.of(events).stories == History.of(preempted()).stories


def test_an_event_that_lacks_something_is_named_by_its_line() -> None:
    events = preempted()
    del events[3]["tokens"], events[2]["arrival_s"]
    with pytest.raises(UsageError, match=r"Line 3 of the trace cannot be understood: it has no 'arrival_s': write"):
        History.of(events)
