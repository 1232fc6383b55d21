"""The rules of Chrome's trace event format, as far as they concern the phases that are used here.

A document is a JSON object with `traceEvents`. Every event has `ph`, `name`, `pid`, `tid` and, unless it is metadata,
`ts` in microseconds. What each phase needs beside that, and what must hold between events, is below.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

__all__ = ["broken_rules"]

Event = dict[str, Any]
NEEDED = {
    "X": {"dur", "cat", "args"},
    "b": {"cat", "id2"},
    "e": {"cat", "id2"},
    "C": {"args"},
    "s": {"cat", "id"},
    "f": {"cat", "id", "bp"},
    "M": {"args"},
}
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def broken_rules(document: Any) -> list[str]:
    """What is against the rules, in sentences; an empty list: nothing."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return ["the document is no object with a list of traceEvents"]
    events = document["traceEvents"]
    fields = [broken for event in events for broken in _fields(event)]
    if fields:
        return fields
    checks = (_sorted, _named, _nested_slices, _balanced_spans, _counters, _flows)
    return [broken for check in checks for broken in check(events)]


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _fields(event: Event) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in NEEDED:
        yield f"{event}: the phase {phase!r} is not used here"
        return
    for name in {"name", "pid", "tid"} | ({"ts"} if phase != "M" else set()) | NEEDED[phase]:
        if name not in event:
            yield f"{event}: {name} is missing"
    for name in ("pid", "tid"):
        if not isinstance(event.get(name), int):
            yield f"{event}: {name} is no whole number"
    for name in ("ts", "dur"):
        value = event.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            yield f"{event}: {name} is no time"
    if not isinstance(event.get("name"), str) or not event["name"]:
        yield f"{event}: it has no name"
    if not isinstance(event.get("args", {}), dict):
        yield f"{event}: its args are no object"


def _sorted(events: list[Event]) -> Iterator[str]:
    for early, late in pairwise(event for event in events if event["ph"] != "M"):
        if late["ts"] < early["ts"]:
            yield f"{late} comes behind {early}"


def _named(events: list[Event]) -> Iterator[str]:
    """Metadata is of a known kind, given once; each process has a name, and each track with slices too."""
    given: set[tuple[str, int, int]] = set()
    for event in events:
        if event["ph"] == "M":
            value = event["args"].get(METADATA.get(event["name"], ""))
            if not isinstance(value, str if event["name"].endswith("_name") else int):
                yield f"{event}: this metadata says nothing"
            key = event["name"], event["pid"], event["tid"]
            if key in given:
                yield f"{event} is given twice"
            given.add(key)
    for pid in sorted({event["pid"] for event in events}):
        for name in ("process_name", "process_sort_index"):
            if (name, pid, 0) not in given:
                yield f"process {pid} has no {name}"
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}):
        for name in ("thread_name", "thread_sort_index"):
            if (name, pid, tid) not in given:
                yield f"track {tid} of process {pid} has no {name}"


def _nested_slices(events: list[Event]) -> Iterator[str]:
    """Two slices of one track are apart, or one is inside the other."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        around: list[int] = []  # ends of the slices that have not ended
        for event in sorted(slices, key=lambda one: (_ns(one["ts"]), -_ns(one["dur"]))):
            start, end = _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])
            while around and around[-1] <= start:
                around.pop()
            if around and end > around[-1]:
                yield f"{event} ends behind the slice that it begins in"
            around.append(end)


def _balanced_spans(events: list[Event]) -> Iterator[str]:
    """Of one category, process and id every end has its beginning, and the last that began ends first."""
    opened: dict[tuple[str, int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] not in "be":
            continue
        if event["id2"].keys() != {"local"} or not isinstance(event["id2"]["local"], str):
            yield f"{event}: its id2 is not local to the process"
            continue
        stack = opened[event["cat"], event["pid"], event["id2"]["local"]]
        if event["ph"] == "b":
            stack.append(event)
        else:
            if not stack or stack.pop()["name"] != event["name"]:
                yield f"{event} ends no span, or not the last that began"
    yield from (f"{event} has no end" for stack in opened.values() for event in stack)


def _counters(events: list[Event]) -> Iterator[str]:
    """A counter has numbers, and the same ones each time."""
    series: dict[tuple[int, str], set[str]] = {}
    for event in events:
        if event["ph"] == "C":
            values = event["args"]
            if not values or not all(isinstance(value, (int, float)) and value >= 0 for value in values.values()):
                yield f"{event}: not all of its values are amounts"
            if series.setdefault((event["pid"], event["name"]), set(values)) != set(values):
                yield f"{event} counts something else than before"


def _flows(events: list[Event]) -> Iterator[str]:
    """An arrow has a tail and then a head, of one name, category and id, each inside a slice of its track."""
    slices = [event for event in events if event["ph"] == "X"]
    tails: dict[Any, Event] = {}
    heads: set[Any] = set()
    for event in events:
        if event["ph"] not in "sf":
            continue
        key = event["cat"], event["id"]
        at = _ns(event["ts"])
        inside = (
            (one["pid"], one["tid"]) == (event["pid"], event["tid"])
            and _ns(one["ts"]) <= at <= _ns(one["ts"]) + _ns(one["dur"])
            for one in slices
        )
        if not any(inside):
            yield f"{event} is in no slice of its track"
        if event["ph"] == "s":
            if key in tails:
                yield f"{event}: there is a tail of this id"
            tails[key] = event
        else:
            if key in heads or tails.get(key, {}).get("name") != event["name"]:
                yield f"{event} has no tail of its own"
            if event["bp"] != "e":
                yield f"{event} is bound to the next slice, and not to that around it"
            heads.add(key)
    yield from (f"{tail} has no head" for key, tail in tails.items() if key not in heads)
