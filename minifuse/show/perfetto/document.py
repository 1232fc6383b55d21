"""Writes the whole document: all events in order of time, as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from minifuse.show.perfetto.counters import counter_events
from minifuse.show.perfetto.events import ENGINE, MEMORY, TraceEvent, Tracks, process_metadata
from minifuse.show.perfetto.requests import request_events
from minifuse.show.perfetto.slots import slot_events
from minifuse.show.perfetto.transfers import transfer_events
from minifuse.show.perfetto.workers import flow_events, worker_events
from minifuse.trace.history import History


def trace_events(history: History) -> list[TraceEvent]:
    """Return every event of a run: names first, then what happened, in order of time.

    At one time, slices come before the arrows that end in them, and ends of a request's inner spans before the end of
    its outer span. A run gives the same events each time.
    """
    workers, memory = Tracks(ENGINE), Tracks(MEMORY)
    slices, where = worker_events(history, workers)
    happened = [
        *slices,
        *transfer_events(history, memory),
        *slot_events(history, memory),
        *request_events(history),
        *counter_events(history),
        *flow_events(history, where),
    ]
    workers.number(happened)
    memory.number(happened)
    named = [*process_metadata(), *workers.metadata(), *memory.metadata()]
    return [*named, *sorted(happened, key=lambda event: event["ts"])]


def document_lines(history: History) -> Iterator[str]:
    """Yield the JSON document, one event per line, so that two documents can be compared."""
    about: dict[str, Any] = {name: value for name, value in history.header.items() if name != "event"}
    yield '{"displayTimeUnit": "ms", "otherData": ' + json.dumps(about) + ', "traceEvents": ['
    events = trace_events(history)
    for i, event in enumerate(events):
        yield json.dumps(event) + ("," if i + 1 < len(events) else "")
    yield "]}"
