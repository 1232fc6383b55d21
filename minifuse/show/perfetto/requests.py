"""Writes requests as spans: waiting, prompt, decoding and suspended, from arrival to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minifuse.show.perfetto.events import TraceEvent, async_begin, async_end, nanoseconds
from minifuse.trace.history import History, Story
from minifuse.trace.waits import Segment, reasons_of_waits

CATEGORY = "request"
WAITS = ("waiting", "ready", "suspended")


def request_events(history: History) -> list[TraceEvent]:
    """Return a span for every request, with its phases as inner spans."""
    events: list[TraceEvent] = []
    waits = reasons_of_waits(history)
    arrived = [story for story in history.by_arrival if story.arrived]
    for number, story in enumerate(arrived, start=1):
        reasons = [*waits.of(story.id)]
        start_ns = nanoseconds(story.arrival_s)
        end_ns = max(start_ns, nanoseconds(history.end_of(story)))
        events.append(async_begin(story.id, CATEGORY, number, start_ns, _args(story)))
        for name, begin_s, stop_s in phases(history, story):
            begin_ns, stop_ns = nanoseconds(begin_s), nanoseconds(stop_s)
            if start_ns <= begin_ns < stop_ns <= end_ns:
                why = _why(reasons, begin_s, stop_s) if name in WAITS else None
                events.append(async_begin(name, CATEGORY, number, begin_ns, why))
                events.append(async_end(name, CATEGORY, number, stop_ns))
        events.append(async_end(story.id, CATEGORY, number, end_ns))
    return events


def _why(reasons: Iterable[Segment], start_s: float, end_s: float) -> dict[str, Any]:
    """Return, for each code of a reason, the seconds waited and the last sentence."""
    found: dict[str, Any] = {}
    for one in reasons:
        within_s = min(one.end_s, end_s) - max(one.start_s, start_s)
        if within_s > 0:
            before_s = found.get(one.code, {}).get("seconds", 0.0)
            found[one.code] = {"seconds": before_s + within_s, "sentence": one.text}
    return found


def phases(history: History, story: Story) -> Iterator[tuple[str, float, float]]:
    """Yield what a request did, one phase after the other: (phase, from, to), in seconds.

    While a request waits, the phase is `waiting`, `ready` or `suspended`. In iterations it is `prompt`, `decoding`,
    `pre-processing` (of a prompt in an iteration of its own) or the type of the nodes. A phase lasts until
    the next one begins.
    """
    changes: list[tuple[float, int, str]] = []  # when, 0 for a wait or 1 for an iteration, what begins
    for wait in story.waits:
        changes += [(wait.start_s, 0, wait.kind)]
    for index in story.iterations:
        one = history.iterations[index]
        changes.append((one.start_s, 1, story.phase_in(one)))
    end_s = history.end_of(story)
    now: tuple[str, float] | None = None
    for at_s, _, name in sorted(changes):
        at_s = min(at_s, end_s)
        if now is not None and now[0] != name:
            yield now[0], now[1], at_s
        if now is None or now[0] != name:
            now = name, at_s
    if now is not None:
        yield now[0], now[1], end_s


def _args(story: Story) -> dict[str, Any]:
    args: dict[str, Any] = {
        "prompt tokens": story.prompt_tokens,
        "tokens": len(story.tokens),
        "iterations": len(story.iterations),
        "end": story.reason,
        "evictions": len(story.evictions),
    }
    for name in ("conversation", "group", "user", "after"):
        if story.request.get(name) is not None:
            args[name] = story.request[name]
    return args
