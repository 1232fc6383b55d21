"""Writes workers as tracks, with a slice per iteration, and evictions as arrows."""

from __future__ import annotations

from typing import Any

from minifuse.core.plan import TRANSFORMER
from minifuse.show.perfetto.events import (
    TraceEvent,
    Tracks,
    complete,
    flow_end,
    flow_start,
    nanoseconds,
)
from minifuse.trace.history import History, Iteration

Slices = dict[int, tuple[tuple[int, int], int]]  # index of an iteration -> the track of its slice, and a time inside


def worker_events(history: History, tracks: Tracks) -> tuple[list[TraceEvent], Slices]:
    """Return a slice for each iteration, and the track and a time of each slice."""
    events: list[TraceEvent] = []
    slices: Slices = {}
    for index, one in enumerate(history.iterations):
        if one.work:
            start_ns, end_ns = nanoseconds(one.start_s), nanoseconds(one.end_s)
            track = tracks.place(f"worker {one.worker}", one.worker, start_ns, end_ns)
            events.append(complete(_name(one), _category(one), track, start_ns, end_ns, _args(one)))
            slices[index] = track, (start_ns + end_ns) // 2
    return events, slices


def flow_events(history: History, slices: Slices) -> list[TraceEvent]:
    """Return an arrow for every eviction of a request that was admitted again."""
    events: list[TraceEvent] = []
    number = 0
    for story in history.by_arrival:
        for left, back in story.evictions:
            if back is not None and left in slices and back in slices:
                number += 1
                name = f"{story.id} suspended"
                events.append(flow_start(name, "preemption", number, *slices[left]))
                events.append(flow_end(name, "preemption", number, *slices[back]))
    return events


def _name(one: Iteration) -> str:
    """Name an iteration: its number, and the cells that it computes."""
    cells = [f"{count} {cell}" for cell, count in one.cells.items() if cell != TRANSFORMER]
    return f"{one.step}: {', '.join(cells)}" if cells else f"iteration {one.step}"


def _category(one: Iteration) -> str:
    return "preprocessing" if one.preprocesses else "iteration"


def _args(one: Iteration) -> dict[str, Any]:
    """Return what was decided for an iteration; viewers show it when its slice is clicked."""
    event = one.event
    args: dict[str, Any] = {
        "batch": len(one.requests),
        "requests": " ".join(one.requests),
        "tokens" if TRANSFORMER in one.cells else "nodes": sum(one.cells.values()),
        "idle": event["idle"],
        "phase": event["phase"],
    }
    for name in ("admitted", "evicted", "finished"):
        if event[name]:
            args[name] = " ".join(event[name])
    if event["reasons"]:
        args["reasons"] = [f"{name} {text}" for _, name, text in event["reasons"]]
    shape = event.get("shape")
    if shape is not None:
        args["shape"] = dict(shape)
    return args
