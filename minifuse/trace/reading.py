"""Loads traces to show, with a notice if a trace is incomplete."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.io.parsing import all_of
from minifuse.trace.file import parse, read_text
from minifuse.trace.log import SCHEMA, Event

STANDARD_INPUT = "standard input"  # its name in messages
MOST_GAPS = 3  # how many gaps a notice names


class LoadedTrace(NamedTuple):
    """The events of a trace, and a notice if the trace is incomplete."""

    events: list[Event]
    notice: str | None = None


def load_trace(where: Path | Literal["-"]) -> LoadedTrace:
    """Load the trace in a file, or on standard input.

    Raises:
        UsageError: the trace cannot be read, or is empty, not a trace, or a trace of another version.
    """
    if where == "-" and sys.stdin is None:
        raise UsageError("The trace is -, and standard input is closed: give a file, or redirect standard input.")
    name = STANDARD_INPUT if where == "-" else str(where)
    return parse_trace(read_text(sys.stdin if where == "-" else where, name), name)


def parse_trace(text: str, name: str) -> LoadedTrace:
    """Load the trace in a text.

    Args:
        name: names the trace in messages.

    Raises:
        UsageError: see `load_trace`.
    """
    events, cut_off = parse(text, name, SCHEMA)
    if cut_off is not None:
        return LoadedTrace(events, f"{name} was cut off in line {cut_off}: what stands before it is shown.")
    if events[-1]["event"] != "end":
        notice = f"{name} ends before its run does, with line {len(events)}: what it has is shown."
        return LoadedTrace(events, notice)
    return LoadedTrace(events, _lacking(events, name) or _backwards(events, name))


def _lacking(events: list[Event], name: str) -> str | None:
    """Return a notice if a trace with an `end` event lacks an iteration.

    Iterations are numbered from 0 on. Only an interrupted run may lack some: those in flight when the run stopped. If
    the last iteration is missing, some request has no end.
    """
    if any(event.get("unfinished") for event in events if event["event"] == "end"):
        return None
    steps = [event for event in events if event["event"] == "step"]
    numbers = sorted({event["step"] for event in steps if type(event.get("step")) is int})
    gaps = [(early + 1, late - 1) for early, late in pairwise([-1, *numbers]) if late - early > 1]
    if gaps:
        which = [str(first) if first == last else f"{first} to {last}" for first, last in gaps]
        rest = " and more" if len(gaps) > MOST_GAPS else ""
        noun = "iterations" if rest or len(gaps) > 1 or gaps[0][0] < gaps[0][1] else "iteration"
        lacking = ", ".join(which[:MOST_GAPS]) if rest else all_of(which)
        return f"{name} lacks {noun} {lacking}{rest}: a line was taken out of it, and what it has is shown."
    ended = {name for step in steps if isinstance(step.get("finished"), dict) for name in step["finished"]}
    ended |= {str(event.get("id")) for event in events if event["event"] in ("aborted", "refused")}
    for event in events:  # a turn that follows another may never have arrived
        if event["event"] == "request" and event.get("after") is None and str(event.get("id")) not in ended:
            return f"{name} lacks the iteration in which {event.get('id')} ended: what it has is shown."
    return None


def _backwards(events: list[Event], name: str) -> str | None:
    """Return a notice if an iteration begins before the previous one of its worker ended."""
    ended: dict[Any, float] = {}
    for event in events:
        wall, worker = event.get("wall"), event.get("worker")
        if event["event"] != "step" or not event.get("work") or not isinstance(wall, dict) or type(worker) is not int:
            continue
        start_s, end_s = wall.get("start_s"), wall.get("end_s")
        if isinstance(start_s, (int, float)) and isinstance(end_s, (int, float)):
            if start_s < ended.get(worker, start_s):
                which = f"iteration {event.get('step')} begins before the last one of worker {worker} has ended"
                return f"{name} has times that run backwards ({which}): what it has is shown."
            ended[worker] = end_s
    return None
