"""Reads runs from their traces, and refuses to compare different workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.reading import load_trace

COMPARED: dict[str, Callable[[Event], Any]] = {  # what requests of one workload have alike
    "prompts of other lengths": lambda line: line["prompt_tokens"] - line.get("history_tokens", 0),
    "other prompts": lambda line: line.get("text"),
    "other limits of their answers": lambda line: line.get("max_new_tokens"),
    "other arrival times": lambda line: line.get("arrival_s"),
    "other priorities": lambda line: line.get("priority"),
    "other users": lambda line: line.get("user"),
}


@dataclass(frozen=True)
class TracedRun:
    """The events of one run, its name, and a notice if the trace was cut off.

    `title` is what the run is called on the page; None: by its technique.
    """

    name: str
    events: Sequence[Event]
    notice: str | None = None
    title: str | None = None

    @cached_property
    def history(self) -> History:
        """What they tell.

        Raises:
            UsageError: an event is not as a trace has it.
        """
        return History.of(self.events, self.name)

    @property
    def empty(self) -> bool:
        """Whether it tells of no iteration, so that there is nothing to show."""
        return not any(event["event"] in ("step", "wait") for event in self.events)

    @property
    def requests(self) -> dict[str, Event]:
        """The lines of requests that were submitted, by id."""
        return {event["id"]: event for event in self.events if event["event"] == "request"}

    @property
    def refused_early(self) -> dict[str, str]:
        """Why requests were refused when they were submitted, by id."""
        return {e["id"]: e["why"] for e in self.events if e["event"] == "refused" and not e.get("received")}


def read_run(path: Path | str, name: str | None = None) -> TracedRun:
    """Read the run in a trace file, as far as it goes; messages call it `name`.

    Raises:
        UsageError: it is no trace of this version.
    """
    return TracedRun(name or str(path), *load_trace(Path(path)))


def keys_of(run: TracedRun) -> list[tuple[str, bool]]:
    """Return each request's id, and whether a request of that id came before it."""
    requests = run.requests
    return [*((name, False) for name in requests), *((name, name in requests) for name in run.refused_early)]


def refuse_other_workload(first: TracedRun, other: TracedRun) -> None:
    """Raise `UsageError`, naming what differs, if two runs served different requests."""
    mine, theirs = first.requests, other.requests
    differing: list[str] = []
    known = [{*requests, *run.refused_early} for run, requests in ((first, mine), (other, theirs))]
    for run, names, requests in ((first, known[0] - known[1], mine), (other, known[1] - known[0], theirs)):
        # A turn is told of when it arrives, which a run that was cut off, or that gave requests up, may not have seen.
        if only := [name for name in requests if name in names and requests[name].get("after") is None]:
            differing.append(f"only {run.name} has {_some(only)}")
    for what, of in COMPARED.items():
        both = [name for name in mine if name in theirs and _comparable(mine[name], theirs[name], what)]
        if unlike := [name for name in both if of(mine[name]) != of(theirs[name])]:
            values = f" ({of(mine[unlike[0]])} and {of(theirs[unlike[0]])})" if what != "other prompts" else ""
            differing.append(f"{_some(unlike)} {'has' if len(unlike) == 1 else 'have'} {what}{values}")
            break
    if differing:
        raise UsageError(
            f"{first.name} and {other.name} are runs of different workloads, which cannot be compared: "
            f"{'; '.join(differing)}: give traces of the same requests, or make a page of each."
        )


def _comparable(mine: Event, theirs: Event, what: str) -> bool:
    """Whether two lines of a request may not differ in this."""
    if what == "other arrival times":  # those that were measured differ from run to run
        return "arrival_s" in mine and "arrival_s" in theirs
    return what != "other prompts" or None not in (mine.get("text"), theirs.get("text"))


def _some(names: list[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
