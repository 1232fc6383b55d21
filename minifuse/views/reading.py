"""A trace that is read to be looked at: also one that was cut off, up to there, with a notice that says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minifuse.errors import UsageError
from minifuse.parsing import all_of
from minifuse.trace import SCHEMA, Event

__all__ = ["STANDARD_INPUT", "LoadedTrace", "load_trace", "parse_trace"]

STANDARD_INPUT = "standard input"  # as messages call it
MOST_GAPS = 3  # that a notice names


class LoadedTrace(NamedTuple):
    """The events of a trace, and what is to be said of it: it was cut off, or lacks a line; None: it is whole."""

    events: list[Event]
    notice: str | None = None


def load_trace(where: Path | Literal["-"]) -> LoadedTrace:
    """The trace in a file, or on standard input.

    Raises:
        UsageError: it cannot be read, is empty, is not a trace, or is one of another version.
    """
    name = STANDARD_INPUT if where == "-" else str(where)
    if where == "-" and sys.stdin is None:
        raise UsageError("The trace is -, and standard input is closed: give a file, or redirect standard input.")
    try:
        text = sys.stdin.read() if where == "-" else Path(where).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"The trace {name} cannot be read ({error.strerror}): give a file that --trace wrote."
        ) from None
    except ValueError:  # bytes that are no text; or a zero byte in the name
        raise _no_trace(name) from None
    return parse_trace(text.split("\n"), name)


def parse_trace(lines: Iterable[str], name: str) -> LoadedTrace:
    """The trace in these lines.

    Args:
        name: what messages call it.

    Raises:
        UsageError: see `load_trace`.
    """
    lines = list(lines)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UsageError(f"{name} is empty: give a file that --trace wrote.")
    events: list[Event] = []
    notice = None
    for number, line in enumerate(lines, start=1):
        try:
            event: Any = json.loads(line)
        except ValueError:
            if number == 1 and not line.startswith('{"event"'):
                raise _no_trace(name) from None
            if number < len(lines):
                raise UsageError(f"Line {number} of {name} is not JSON: write the trace again with --trace.") from None
            notice = f"{name} was cut off in line {number}: what stands before it is shown."
            break
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            if number == 1:
                raise _no_trace(name)
            raise UsageError(f"Line {number} of {name} is not an event of a trace: write it again with --trace.")
        if number == 1:
            _check_version(event, name)
        events.append(event)
    if not events:
        raise UsageError(f"{name} was cut off within its first line: write it again with --trace.")
    if notice is None and events[-1]["event"] != "end":
        notice = f"{name} ends before its run does, with line {len(events)}: what it has is shown."
    return LoadedTrace(events, notice or _lacking(events, name))


def _lacking(events: list[Event], name: str) -> str | None:
    """The notice for a trace that has its end and lacks an iteration: a line was taken out of it.

    Iterations are numbered from 0 on, and a run that was not interrupted waits for all of them: the trace of one that
    was may lack those that were running. The last iteration has the end of a request, which is then nowhere.
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
    for event in events:  # a turn that follows another is of a request that may never have come
        if event["event"] == "request" and event.get("after") is None and str(event.get("id")) not in ended:
            return f"{name} lacks the iteration in which {event.get('id')} ended: what it has is shown."
    return None


def _check_version(first: Event, name: str) -> None:
    schema = first.get("schema")
    if first["event"] != "run" or not isinstance(schema, str) or not schema.startswith("minifuse.trace/"):
        raise _no_trace(name)
    if schema != SCHEMA:
        raise UsageError(
            f"{name} is a trace of version {schema}, and this minifuse reads {SCHEMA}: write it again with this "
            "version of minifuse."
        )


def _no_trace(name: str) -> UsageError:
    return UsageError(f"{name} is not a trace: give a file that --trace wrote.")
