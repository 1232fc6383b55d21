"""A trace in which something is missing or wrong is refused with its line, or shown all the same: never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from runs_told import padded, preempted

from minifuse.cli.summary import as_json, as_lines, timeline_of
from minifuse.errors import UsageError
from minifuse.trace import Event
from minifuse.views.gaps import longest_gaps
from minifuse.views.history import History
from minifuse.views.perfetto.document import document_lines
from minifuse.views.waits import reasons_of_waits, waited_for

WRONG = (None, -1, "x", [[1]], {}, float("nan"))


def show(events: list[Event]) -> None:
    """Everything that is made of a trace."""
    history = History.of(events)
    timeline, reasons = timeline_of(history, 60, 2), reasons_of_waits(history)
    waits, gaps = waited_for(reasons), longest_gaps(history, reasons)
    assert [*as_lines(history, timeline, waits, gaps, 60)]
    assert json.dumps(as_json(history, timeline, waits, gaps, None))
    assert [*document_lines(history)]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from paths(value[key], (*path, key))


@pytest.mark.parametrize("told", [preempted, padded])
def test_whatever_is_missing_or_wrong(told: Callable[[], list[Event]]) -> None:
    refused = 0
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
                refused += 1
                line = str(error).partition(" of the trace cannot be understood (")[0]
                assert line == f"Line {path[0] + 1}" or line.startswith("The trace cannot"), (path, how)
    assert refused > 100
