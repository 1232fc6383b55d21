"""What the replay page knows of traces: the record, plain data of numbers, lists and texts.

    {"version": 1, "runs": [{"title": "fluid", ..., "requests": [...], "steps": [...]}, ...]}

Requests stand in the same order in every run of a record, and steps name them by their number in it. Keys of steps are
short, since there are many steps: `n` the step's number, `k` its worker, `t` when it began and ended, `w` its work,
`p` the places of that, `a` who was admitted, `e` evicted, `ph` the phase, `sh` the shape, `wv` waves, `ln` lanes, `m`
moves, `ru` what was reused, `y` reasons, `c` and `i` tokens computed and idle, `o` how many tokens each took in, `f`
who finished, `kv` and `kp` memory, `x` seconds that computing waited for transfers, `d` tokens discarded; `wait` marks
a wait. What is empty is left out. Places and moves are told as in the trace (docs/architecture.md, "A trace's lines").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from minifuse.errors import UsageError
from minifuse.request import FinishReason, Phase
from minifuse.techniques import TECHNIQUES
from minifuse.trace import Event
from minifuse.views.checks import check_step, check_time
from minifuse.views.reading import load_trace
from minifuse.work import TRANSFORMER

__all__ = ["TracedRun", "read_run", "record"]

VERSION = 1
NANOSECONDS = 9  # decimal places of a second
Object = dict[str, Any]
COMPARED: dict[str, Callable[[Event], Any]] = {  # what requests of one workload have alike
    "prompts of other lengths": lambda line: line["prompt_tokens"] - line.get("history_tokens", 0),
    "other prompts": lambda line: line.get("text"),
    "other limits of their answers": lambda line: line["max_new_tokens"],
    "other arrival times": lambda line: line.get("arrival_s"),
    "other priorities": lambda line: line["priority"],
}
EMPTY: tuple[Any, ...] = (None, [], {}, 0, False)


@dataclass(frozen=True)
class TracedRun:
    """The events of one run, where they are from, and what is to be said of them (a trace that was cut off)."""

    name: str
    events: Sequence[Event]
    notice: str | None = None

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
    """The run that a trace file tells of, which messages call `name`; of one that was cut off, up to there.

    Raises:
        UsageError: it is no trace of this version.
    """
    return TracedRun(name or str(path), *load_trace(Path(path)))


def record(runs: Sequence[TracedRun]) -> Object:
    """The record of runs of one workload.

    Raises:
        UsageError: one has no iteration, their workloads differ, or an event is not as a trace has it.
    """
    if not runs:
        raise UsageError("No trace was given: give one, or several of the same requests.")
    for run in runs:
        if run.empty:
            raise UsageError(
                f"{run.name} tells of no iteration, so there is nothing to show: give the trace of a run that served "
                "a request."
            )
    try:
        for run in runs[1:]:
            _refuse_other_workload(runs[0], run)
        keys = list(dict.fromkeys(chain.from_iterable(map(_keys, runs))))
        titles = _titles(runs)
        cells: dict[str, int] = {}
        told = [_Run(run, keys, title, cells).told() for run, title in zip(runs, titles, strict=True)]
        return {"version": VERSION, "runs": told}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        names = " or ".join(run.name for run in runs)
        raise UsageError(
            f"A line of {names} cannot be understood ({type(error).__name__}: {error}): write the trace again with "
            "--trace."
        ) from None


def _keys(run: TracedRun) -> list[tuple[str, bool]]:
    """What tells the requests of a run apart: the id, and whether a request of that id was served before it."""
    requests = run.requests
    return [*((name, False) for name in requests), *((name, name in requests) for name in run.refused_early)]


def _titles(runs: Sequence[TracedRun]) -> list[str]:
    """The technique of each run, told apart by number where there are several of one."""
    techniques = [str(run.events[0].get("technique", "run")) for run in runs]
    seen: dict[str, int] = {}
    titles = []
    for name in techniques:
        seen[name] = seen.get(name, 0) + 1
        titles.append(name if techniques.count(name) == 1 else f"{name} {seen[name]}")
    return titles


def _refuse_other_workload(first: TracedRun, other: TracedRun) -> None:
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


class _Run:
    """Turns the events of one run into its part of the record.

    `keys` are the requests of all runs, in order; `cells` the numbers of types of cells, in this run and before it.
    """

    def __init__(self, run: TracedRun, keys: list[tuple[str, bool]], title: str, cells: dict[str, int]) -> None:
        self.run, self.title = run, title
        self.header = run.events[0]
        self.number = {name: i for i, (name, again) in enumerate(keys) if not again}
        self.requests: list[Object] = [
            {"id": name, "arrival": None, "ended": None, "outcome": None} for name, _ in keys
        ]
        for name, why in run.refused_early.items():
            refused = self.requests[keys.index((name, name in run.requests))]
            refused |= {"refused": why, "outcome": FinishReason.REFUSED.value}
        self.cells = cells
        self.reasons: dict[tuple[str, str], int] = {}
        self.steps: list[Object] = []
        self.workers = 1
        self.host_slots = 0

    def told(self) -> Object:
        for event in self.run.events:
            match event["event"]:
                case "request":
                    self._request(event)
                case "refused":
                    if event.get("received"):
                        self.requests[self.number[event["id"]]] |= {"refused": event["why"], "outcome": "refused"}
                case "aborted":
                    self._ended(event["id"], FinishReason.ABORTED.value, event["wall"]["end_s"])
                case "answer":
                    text = event["text"]
                    self.requests[self.number[event["id"]]] |= {"answer": text, "ends": _in_utf16(text, event["ends"])}
                case "step":
                    self._step(event)
                case "wait":
                    self.steps.append({"wait": True, "t": _times(event), "y": self._reasons(event)})
                case "end":
                    for name in event["unfinished"]:
                        self._ended(name, FinishReason.INTERRUPTED.value, event["wall"]["end_s"])
        header = self.header
        facts = [
            *((name, header.get(name)) for name in ("technique",)),
            *header.get("stages", {}).items(),
            *((name, header.get(name)) for name in ("model", "dtype", "clock", "numerics", "seed")),
            *header.get("options", {}).items(),
        ]
        return {
            "title": self.title,
            "summary": row.summary if (row := TECHNIQUES.get(str(header.get("technique")))) else None,
            "facts": [[name, str(value)] for name, value in facts if value is not None],
            "notice": self.run.notice,
            "clock": header.get("clock", "real"),
            "unit": "state" if self.cells and TRANSFORMER not in self.cells else "token",
            "capacity": header.get("kv_capacity_tokens", 0),
            "hostCapacity": self.host_slots,
            "workers": self.workers,
            "cells": list(self.cells) or [TRANSFORMER],
            "reasons": [list(reason) for reason in self.reasons],
            "kvBytes": header.get("kv_bytes_per_token", 0),
            "requests": self.requests,
            "steps": self.steps,
        }

    def _request(self, event: Event) -> None:
        arrived = event.get("after") is None or "wall" in event
        optional = {"after": "after", "history": "history_tokens", "text": "text"}
        self.requests[self.number[event["id"]]] |= {
            "arrival": _seconds(event.get("wall", event)["arrival_s"]) if arrived else None,
            "prompt": event["prompt_tokens"],
            "maxNew": event["max_new_tokens"],
            "priority": event["priority"],
            "conversation": event["conversation"],
            "group": event["group"],
            **{name: event[key] for name, key in optional.items() if event.get(key) is not None},
        }

    def _ended(self, name: str, outcome: str, at: float) -> None:
        self.requests[self.number[name]] |= {"outcome": outcome, "ended": _seconds(at)}

    def _reasons(self, event: Event) -> list[list[int]]:
        return [
            [self.number[name], self.reasons.setdefault((code, text), len(self.reasons))]
            for code, name, text in event["reasons"]
            if name in self.number
        ]

    def _step(self, event: Event) -> None:
        check_step(event)
        number = self.number
        self.workers = max(self.workers, event["worker"] + 1)
        for _, source, target, count, *tiers in event["moves"]:
            for slot, tier in zip((source, target), tiers, strict=False):
                if tier == "host":
                    self.host_slots = max(self.host_slots, slot + count)
        times = _times(event)
        for name, reason in event["finished"].items():
            self._ended(name, reason, times[1])
        waves = event["waves"]
        told = {
            "n": event["step"],
            "k": event["worker"],
            "t": times,
            "w": [self._work(*work) for work in event["work"]],
            "p": event["places"],
            "a": [number[name] for name in event["admitted"]],
            "e": [number[name] for name in event["evicted"]],
            "ph": event["phase"] if event["phase"] != Phase.RUNNING.value else None,
            "sh": event["shape"],
            "wv": waves if len(waves) > 1 else None,
            "ln": event["lanes"],
            "m": event["moves"],
            "ru": [[number[name], *found] for name, *found in event.get("reused", ())],
            "y": self._reasons(event),
            "c": event["computed"],
            "i": event["idle"],
            "o": [[number[name], len(tokens)] for name, tokens in event["tokens"].items() if tokens],
            "f": [[number[name], reason] for name, reason in event["finished"].items()],
            "kv": event["kv"],
            "kp": event.get("kept"),
            "x": event["wall"].get("transfers", {}).get("exposed_s"),
            "d": event.get("discarded"),
        }
        self.steps.append({name: value for name, value in told.items() if value not in EMPTY or name in ("n", "k")})

    def _work(self, name: str, start: int, stop: int, cell: str = TRANSFORMER) -> list[int]:
        kind = self.cells.setdefault(cell, len(self.cells))
        return [self.number[name], start, stop, *([kind] if cell != TRANSFORMER else [])]


def _in_utf16(text: str, ends: list[int]) -> list[int]:
    """The same places in a text as JavaScript counts them: a letter beyond 16 bits is two.

    >>> _in_utf16("a\U0001f600b", [1, 2, 3])
    [1, 3, 4]
    """
    if text.isascii():
        return ends
    units = [0, *accumulate(1 + (letter > "\uffff") for letter in text)]
    return [units[end] for end in ends]


def _seconds(value: float) -> float:
    return round(check_time(value), NANOSECONDS)


def _times(event: Event) -> list[float]:
    return [_seconds(event["wall"]["start_s"]), _seconds(event["wall"]["end_s"])]
