"""Reads runs from their traces, and refuses to compare different workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.show.figures import first_few
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.reading import load_trace

NAMED = 3  # requests that a message names
COMPARED: dict[str, Callable[[Event], Any]] = {  # equal in all runs of one workload
    "prompts of other lengths": lambda line: line["prompt_tokens"] - line.get("history_tokens", 0),
    "other prompts": lambda line: line.get("text"),
    "other limits of their answers": lambda line: line.get("max_new_tokens"),
    "other arrival times": lambda line: line.get("arrival_s"),
    "other priorities": lambda line: line.get("priority"),
    "other users": lambda line: line.get("user"),
}


@dataclass(frozen=True)
class TracedRun:
    """A run's events, with a notice if its trace was cut off.

    `name` is for messages. `title` names the run on the page; if it is None, the page shows the technique's name.
    """

    name: str
    events: Sequence[Event]
    notice: str | None = None
    title: str | None = None

    @cached_property
    def history(self) -> History:
        """Read the run from its events.

        Raises:
            UsageError: an event lacks a key, or has a value of another type.
        """
        return History.of(self.events, self.name)

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to show: no iteration and no wait."""
        return not any(event["event"] in ("step", "wait") for event in self.events)

    @property
    def requests(self) -> dict[str, Event]:
        """Return the lines of submitted requests, by id."""
        return {event["id"]: event for event in self.events if event["event"] == "request"}

    @property
    def refused_early(self) -> dict[str, str]:
        """Return why requests were refused at submission, by id."""
        return {e["id"]: e["why"] for e in self.events if e["event"] == "refused" and not e.get("received")}


def read_run(path: Path | str, name: str | None = None) -> TracedRun:
    """Read a run from a trace file, even if cut off; `name` is for messages.

    Raises:
        UsageError: the file is not a trace of this version.
    """
    return TracedRun(name or str(path), *load_trace(Path(path)))


def keys_of(run: TracedRun) -> list[tuple[str, bool]]:
    """Return each request's id, and whether an earlier request has the same id."""
    requests = run.requests
    return [*((name, False) for name in requests), *((name, name in requests) for name in run.refused_early)]


def refuse_other_workload(first: TracedRun, other: TracedRun) -> None:
    """Raise `UsageError`, naming what differs, if two runs served different requests."""
    mine, theirs = first.requests, other.requests
    differing: list[str] = []
    known = [{*requests, *run.refused_early} for run, requests in ((first, mine), (other, theirs))]
    for run, names, requests in ((first, known[0] - known[1], mine), (other, known[1] - known[0], theirs)):
        # A turn's line is written when the turn arrives: a run that was cut off, or aborted requests, may lack it.
        if only := [name for name in requests if name in names and requests[name].get("after") is None]:
            differing.append(f"only {run.name} has {first_few(only, NAMED)}")
    for what, of in COMPARED.items():
        both = [name for name in mine if name in theirs and _comparable(mine[name], theirs[name], what)]
        if unlike := [name for name in both if of(mine[name]) != of(theirs[name])]:
            values = f" ({of(mine[unlike[0]])} and {of(theirs[unlike[0]])})" if what != "other prompts" else ""
            differing.append(f"{first_few(unlike, NAMED)} {'has' if len(unlike) == 1 else 'have'} {what}{values}")
            break
    if differing:
        raise UsageError(
            f"{first.name} and {other.name} are runs of different workloads, which cannot be compared: "
            f"{'; '.join(differing)}: give traces of the same requests, or make a page of each."
        )


def _comparable(mine: Event, theirs: Event, what: str) -> bool:
    """Tell whether two runs' lines about the same request must agree in `what`."""
    if what == "other arrival times":  # measured ones differ from run to run
        return "arrival_s" in mine and "arrival_s" in theirs
    return what != "other prompts" or None not in (mine.get("text"), theirs.get("text"))
