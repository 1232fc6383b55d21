"""Counts running and waiting requests, computed and idle tokens, and memory by tier."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.show.perfetto.events import ENGINE, MEMORY, TraceEvent, counter, nanoseconds
from minifuse.trace.history import History

Change = tuple[int, dict[str, int]]  # when, and by how much each value changes


def counter_events(history: History) -> list[TraceEvent]:
    """Return all counters, each in order of time."""
    work = "nodes" if history.of_cells else "tokens"
    computing = [one for one in history.iterations if one.work]
    spans = [(nanoseconds(one.start_s), nanoseconds(one.end_s), one) for one in computing]
    waits = [
        (nanoseconds(wait.start_s), nanoseconds(wait.end_s))
        for story in history.stories.values()
        for wait in story.waits
    ]
    return [
        *_levels("batch", (_pair(start, end, {"requests": len(one.requests)}) for start, end, one in spans)),
        *_levels("queue", (_pair(start, end, {"requests": 1}) for start, end in waits)),
        *_levels(
            f"{work} of an iteration",
            (
                _pair(start, end, {"computed": one.event["computed"] - one.event["idle"], "idle": one.event["idle"]})
                for start, end, one in spans
            ),
        ),
        *_memory(history),
    ]


def _pair(start_ns: int, end_ns: int, values: dict[str, int]) -> tuple[Change, Change]:
    """Return two changes: values added at a start, and removed at an end."""
    return (start_ns, values), (end_ns, {name: -value for name, value in values.items()})


def _levels(name: str, spans: Iterable[tuple[Change, Change]]) -> list[TraceEvent]:
    """Turn changes into a counter: one event, with all values, whenever a value changes."""
    changes = sorted((change for pair in spans for change in pair), key=lambda change: change[0])
    levels: dict[str, int] = dict.fromkeys((key for _, values in changes[:1] for key in values), 0)
    events: list[TraceEvent] = []
    for i, (at_ns, values) in enumerate(changes):
        for key, value in values.items():
            levels[key] += value
        last = i + 1 == len(changes) or changes[i + 1][0] > at_ns
        if last and (not events or events[-1]["args"] != levels):
            events.append(counter(name, ENGINE, at_ns, levels))
    return events


def _memory(history: History) -> list[TraceEvent]:
    """Return the memory in use during each iteration, by tier, and the memory reserved.

    Tiers that a run never uses are left out. Reserved memory is a counter of its own, and includes memory in use.
    """
    noun = "states" if history.of_cells else "KV"
    tiers = ("device", "host", "kept on the device", "kept on the host")
    every = [(one.event["kv"][0], one.event["kv"][3], *one.event.get("kept", (0, 0))) for one in history.iterations]
    ever = [i for i in range(len(tiers)) if not i or any(amounts[i] for amounts in every)]
    in_use, reserved = [], []
    for one, amounts in zip(history.iterations, every, strict=True):
        at_ns = nanoseconds(one.start_s)
        in_use.append(counter(f"{noun} in use", MEMORY, at_ns, {tiers[i]: amounts[i] for i in ever}))
        reserved.append(counter(f"{noun} reserved", MEMORY, at_ns, {"device": one.event["kv"][1]}))
    if in_use:
        at_ns = nanoseconds(history.last_s)
        in_use.append({**in_use[-1], "ts": at_ns / 1000})
        reserved.append({**reserved[-1], "ts": at_ns / 1000})
    return in_use + reserved
