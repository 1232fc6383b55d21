"""A trace in which something is missing or wrong is refused with its line, or shown all the same: never a traceback."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from damage import WRONG, paths
from runs_told import padded, preempted

from minifuse.core.errors import UsageError
from minifuse.show.perfetto.document import document_lines
from minifuse.show.summary import as_json, as_lines, timeline_of
from minifuse.trace.gaps import longest_gaps
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.waits import reasons_of_waits, waited_for


def show(events: list[Event]) -> None:
    """Everything that is made of a trace."""
    history = History.of(events)
    timeline, reasons = timeline_of(history, 60, 2), reasons_of_waits(history)
    waits, gaps = waited_for(reasons), longest_gaps(history, reasons)
    assert [*as_lines(history, timeline, waits, gaps, 60)]
    assert json.dumps(as_json(history, timeline, waits, gaps, None))
    assert [*document_lines(history)]


@pytest.mark.parametrize("told", [preempted, padded])
def test_whatever_is_missing_or_wrong(told: Callable[[], list[Event]]) -> None:
    refused: list[tuple[tuple[Any, ...], str]] = []
    for i, path in enumerate(paths(told())):
        if len(path) < 2 or path[1] == "event":
            continue
        for how in ("missing", WRONG[i % len(WRONG)]):
            events = copy.deepcopy(told())
            inside: Any = events
            for key in path[:-1]:
                inside = inside[key]
            if how == "missing":
                del inside[path[-1]]
            else:
                inside[path[-1]] = how
            try:
                show(events)
            except UsageError as error:
                refused.append((path, str(error)))
    for path, sentence in refused:  # it names that line, or a later one, which it does not go with
        said = re.fullmatch(r"Line (\d+) of the trace cannot be understood: .+ with --trace\.", sentence)
        assert said, (path, sentence)
        assert int(said[1]) > path[0]
    assert len(refused) > 100


STEP, RECTANGLE = 3, 4  # lines: of `preempted`, and of `padded`


@pytest.mark.parametrize(
    ("told", "line", "change", "because"),
    [
        (preempted, STEP, {"places": [[10**12, 8]]}, "a slot is 1000000000000, and is to be a whole number from 0 to"),
        (
            preempted,
            STEP,
            {"places": [[8 * 1024 - 4, 8]]},
            "slots 8188 to 8195 are not in memory",
        ),
        (preempted, STEP, {"places": [[0, [10**12], 16]]}, "a number of a place is 1000000000000, and"),
        (preempted, STEP, {"places": [[[[8, -1]]]]}, "a number of slots is -1, and"),
        (preempted, STEP, {"places": [[[], 10**12]]}, "a slot is 1000000000000, and"),
        (preempted, STEP, {"places": []}, "there is not one place for each piece of work"),
        (preempted, 6, {"moves": [["swap_out", 0, 2**31, 4, "device", "host"]]}, "slots 2147483648 to 2147483651 are"),
        (preempted, 6, {"moves": [["swap_out", 0, 0, 4, "device", "disk"]]}, "a move names 'disk' as a tier of memory"),
        (preempted, STEP, {"worker": -1}, "the worker is -1, and is to be a whole number from 0 to 4096"),
        (preempted, STEP, {"worker": 10**9}, "the worker is 1000000000, and"),
        (preempted, STEP, {"step": "0"}, "the number of the step is '0', and is to be a whole number"),
        (preempted, 5, {"step": 0}, "step 0 has been told before"),
        (preempted, STEP, {"work": [["z", 0, 3]]}, "work names 'z', which no line before it asks for"),
        (preempted, STEP, {"work": [["c", 0, 3]]}, "work names 'c', which no line before it asks for"),
        (preempted, STEP, {"work": [["a", 3, 3]]}, "the work of 'a' is [3, 3]"),
        (preempted, STEP, {"wall": {"start_s": 2.0, "end_s": 1.0}}, "it ends at 1.0 s, before it begins, at 2.0 s"),
        (preempted, STEP, {"wall": {"start_s": -1.0, "end_s": 1.0}}, "-1.0 is no time in seconds"),
        (preempted, STEP, {"kv": [3, 4, 10**12, 0]}, "kv is [3, 4, 1000000000000, 0]"),
        (preempted, STEP, {"idle": 9}, "more is idle than is computed"),
        (preempted, STEP, {"waves": [[0, 2]]}, "a wave is [0, 2]"),
        (preempted, STEP, {"lanes": [[1]]}, "a lane is [1]"),
        (preempted, 1, {"arrival_s": 1e300}, "1e+300 is no time in seconds"),
        (preempted, 1, {"id": "\ud800"}, "an id is '\\ud800', and is to be a text"),
        (preempted, 10, {"event": "answer", "id": "a", "text": "xy", "ends": [1, 3]}, "ends are not places"),
        (preempted, 10, {"event": "answer", "id": "a", "text": "xy", "ends": [2, 1]}, "ends are not places"),
        (preempted, 10, {"event": "aborted", "id": "z"}, "aborted names 'z', which no line before it asks for"),
        (preempted, 10, {"event": "refused", "id": "z", "why": "?", "received": True}, "refused names 'z'"),
        (padded, 2, {"wall": {"start_s": 2.0, "end_s": 1.0}}, "it ends at 1.0 s, before it begins, at 2.0 s"),
        (
            padded,
            RECTANGLE,
            {"shape": {"kind": "Rectangle", "offset": 0, "rows": 13, "stride": 8}},
            "slots is 104, and",
        ),
        (padded, RECTANGLE, {"shape": {"kind": "Region", "offset": 0, "size": 2, "width": 0}}, "rows without slots"),
        (padded, RECTANGLE, {"shape": {"kind": "Circle"}}, "the shape is 'Circle'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_cannot_be_is_told_with_its_line(
    told: Callable[[], list[Event]], line: int, change: dict[str, Any], because: str
) -> None:
    events = told()
    events[line] = events[line] | change
    with pytest.raises(UsageError) as refused:
        History.of(events, "run.jsonl")
    assert str(refused.value).startswith(f"Line {line + 1} of run.jsonl cannot be understood: ")
    assert because in str(refused.value)
    assert str(refused.value).endswith(": write it again with --trace.")
