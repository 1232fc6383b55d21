"""Makes the record that the replay page shows: plain data of numbers, lists and texts.

    {"version": 1, "runs": [{"title": "fluid", ..., "requests": [...], "steps": [...]}, ...]}

Every run of a record has the same requests in the same order. A request's number is its place in that order, and also
the number of its colour, unless the request has a `colour`. Steps name requests by their numbers. Keys of steps are
short, because there are many steps, and empty values are left out:

| key | value |
|---|---|
| `n`, `k`, `t`, `wait` | the step's number, its worker, its start and end; true for a wait |
| `w`, `a`, `e`, `f`, `o` | work; requests admitted, evicted, finished; the number of tokens that each request got |
| `ph`, `sh`, `wv`, `ln` | phase, shape, waves, lanes |
| `m`, `mo` | moves, and for each move the set of requests that owned its source |
| `s`, `h`, `wd` | changes of slots on the device and the host; for each wave, the device's differences from `s` |
| `fr`, `id`, `iw`, `ly` | runs of slots: written by each wave; computed idle, in all or by wave; idle from earlier |
| `win` | the windows of a shuffle: first and last buffer, copies |
| `ru`, `y`, `d` | KV reused, the policy's own reasons, tokens discarded |
| `c`, `i`, `kv`, `kp`, `x` | tokens computed and idle, memory in use and kept, seconds waited for transfers |

Moves and shapes are as in the trace (docs/traces.md, "A trace's lines"), changes of slots as in
`minifuse.show.slot_changes`.

Requests have what `minifuse.trace` derives. A column is the index of a step in `steps`:

| key | value |
|---|---|
| `states` | the columns in which the state changes, and the new states, as indices of `STATES` |
| `moves` | a list [column, kind, tokens] for each kind of move in a column |
| `idle` | columns that computed the request's row after its end |
| `waits` | three lists, from, to and reason: the request waited in columns [from, to) |

A reason is an index of `reasons`. -1 and -2 stand for `passed`[0] and `passed`[1], lists that passed-over requests
share (`minifuse.trace.waits`): such a list has columns, and the reason that holds from each of them on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.core.request import FinishReason, Phase
from minifuse.show.slot_changes import SlotChanges
from minifuse.show.traced_runs import TracedRun, keys_of, refuse_other_workload
from minifuse.techniques import TECHNIQUES
from minifuse.trace.history import History, Story
from minifuse.trace.idle_rows import idle_rows
from minifuse.trace.log import Event, arrival_of
from minifuse.trace.slot_books import books
from minifuse.trace.slots import as_drawn, block_size, first_shared, highest_slot
from minifuse.trace.waits import Piece, reasons_of_waits

VERSION = 1
NANOSECONDS = 9  # decimal places of a second
Object = dict[str, Any]
MOST_WORKERS = 64  # the most that a policy's option takes: more come from a damaged trace
MOST_SLOTS = 2**25  # the most that are drawn; no device has as many
STATES = ["absent", "waiting", "preprocessing", "ready", "running", "suspended", "finished", "refused"]
EMPTY: tuple[Any, ...] = (None, [], {}, 0, False)


def record(runs: Sequence[TracedRun], colours: Mapping[str, int] | None = None) -> Object:
    """Make the record of runs of one workload.

    Args:
        colours: maps requests to the numbers of their colours; by default, a request's own number is used.

    Raises:
        UsageError: a run has no iteration, the runs' workloads differ, or an event lacks a key or has a wrong value.
    """
    if not runs:
        raise UsageError("No trace was given: give one, or several of the same requests.")
    for run in runs:
        if run.empty:
            raise UsageError(
                f"{run.name} tells of no iteration, so there is nothing to show: give the trace of a run that served "
                "a request."
            )
    histories = [run.history for run in runs]  # refuses damaged lines first
    for run in runs[1:]:
        refuse_other_workload(runs[0], run)
    keys = list(dict.fromkeys(chain.from_iterable(map(keys_of, runs))))
    cells: dict[str, int] = {}
    parts = zip(runs, histories, _titles(runs), strict=True)
    return {
        "version": VERSION,
        "runs": [_Run(run, history, keys, title, cells, colours or {}).told() for run, history, title in parts],
    }


def _titles(runs: Sequence[TracedRun]) -> list[str]:
    """Return the title or technique of each run, numbered if several are equal."""
    names = [run.title or str(run.events[0].get("technique", "run")) for run in runs]
    seen: dict[str, int] = {}
    titles = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        titles.append(name if names.count(name) == 1 else f"{name} {seen[name]}")
    return titles


class _Run:
    """Turns the events of one run into its part of the record.

    `keys` has the requests of all runs, in order. `cells` numbers the types of cells in all runs. `colours` is as for
    `record`.
    """

    def __init__(
        self,
        run: TracedRun,
        history: History,
        keys: list[tuple[str, bool]],
        title: str,
        cells: dict[str, int],
        colours: Mapping[str, int],
    ) -> None:
        self.run, self.history, self.title = run, history, title
        self.waits = reasons_of_waits(history)
        self.header = run.events[0]
        self.number = {name: i for i, (name, again) in enumerate(keys) if not again}
        self.requests: list[Object] = [
            {"id": name, "arrival": None, "ended": None, "outcome": None} for name, _ in keys
        ]
        for i, request in enumerate(self.requests):
            if (colour := colours.get(request["id"], i)) != i:
                request["colour"] = colour
        for name, why in run.refused_early.items():
            refused = self.requests[keys.index((name, name in run.requests))]
            refused |= {"refused": why, "outcome": FinishReason.REFUSED.value}
        self.cells = cells
        self.reasons: dict[tuple[str, str], int] = {}
        self.steps: list[Object] = []
        self.passed: list[list[list[int]]] = []
        self.finished: dict[str, int] = {}  # by request, the column after the one that finishes it
        self.workers = _workers_asked_for(self.header)  # raised when a step has a higher worker

    def told(self) -> Object:
        num_pauses = 0
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
                    num_pauses += 1
                    self.steps.append({"wait": True, "t": _times(event), "y": self._reasons(-num_pauses)})
                case "end":
                    for name in self.number.keys() & event["unfinished"]:
                        self._ended(name, FinishReason.INTERRUPTED.value, event["wall"]["end_s"])
        self._in_columns()
        slots = self._slots()
        header = self.header
        row = TECHNIQUES.get(str(header.get("technique")))
        stages = header.get("stages", {})
        facts = [
            ("technique", header.get("technique")),
            *stages.items(),
            *((name, header.get(name)) for name in ("model", "dtype", "clock", "numerics", "seed")),
            *header.get("options", {}).items(),
        ]
        return {
            "title": self.title,
            "summary": row and row.summary,
            "idea": row and row.idea,
            "stages": stages,
            "facts": [[name, str(value)] for name, value in facts if value is not None],
            "notice": self.run.notice,
            "unit": "state" if self.cells and TRANSFORMER not in self.cells else "token",
            "capacity": header.get("kv_capacity_tokens", 0),
            "workers": self.workers,
            "cells": list(self.cells) or [TRANSFORMER],
            "reasons": [list(reason) for reason in self.reasons],
            "passed": self.passed,
            "slots": slots,
            "requests": self.requests,
            "steps": self.steps,
        }

    def _request(self, event: Event) -> None:
        arrival_s, arrived = arrival_of(event)
        optional = {"after": "after", "history": "history_tokens", "text": "text"}
        self.requests[self.number[event["id"]]] |= {
            "arrival": _seconds(arrival_s) if arrived else None,
            "prompt": event["prompt_tokens"],
            "maxNew": event.get("max_new_tokens", 0),
            "priority": event.get("priority", 0),
            "conversation": event.get("conversation"),
            "group": event.get("group"),
            **{name: event[key] for name, key in optional.items() if event.get(key) is not None},
        }

    def _ended(self, name: str, outcome: str, at: float) -> None:
        self.requests[self.number[name]] |= {"outcome": outcome, "ended": _seconds(at)}

    def _reason(self, code: str, text: str) -> int:
        return self.reasons.setdefault((code, text), len(self.reasons))

    def _reasons(self, number: int) -> list[list[int]]:
        """Return the policy's reasons at step `number`, or at pause `-number` if negative."""
        given = self.waits.given.get(number, ())
        return [[self.number[name], self._reason(code, text)] for code, name, text in given if name in self.number]

    def _in_columns(self) -> None:
        """Add each request's waits, states and idle columns."""
        ends = [*accumulate((step["t"][1] for step in self.steps), max)]
        of_step = {step["n"]: column for column, step in enumerate(self.steps) if "n" in step}

        def column(at_s: float) -> int:
            """Return the first column that ends after a time."""
            return bisect_right(ends, _seconds(at_s))

        for shared in self.waits.passed:
            by_column = {column(at_s): self._reason(code, text) for at_s, code, text in shared}  # the last of several
            self.passed.append([list(by_column), list(by_column.values())])
        for name, pieces in self.waits.pieces.items():
            told = [(column(piece.start_s), column(piece.end_s), self._told(piece)) for piece in pieces]
            if told := [one for one in told if one[0] < one[1]]:
                self.requests[self.number[name]]["waits"] = [list(one) for one in zip(*told, strict=True)]
        for name, indices in idle_rows(self.history).items():
            columns = sorted(of_step[self.history.iterations[index].step] for index in indices)
            self.requests[self.number[name]]["idle"] = columns
        for request in self.requests:
            if "refused" in request:
                at = 0 if request["arrival"] is None else column(request["arrival"])
                request["states"] = [[at], [STATES.index("refused")]]
        for story in self.history.stories.values():
            if story.arrived:
                own = [of_step[self.history.iterations[index].step] for index in story.iterations]
                self.requests[self.number[story.id]]["states"] = self._states(story, column, max(own, default=-1))

    def _states(self, story: Story, column: Callable[[float], int], last: int) -> list[list[int]]:
        """Return the columns in which a request's state changes, and the new states.

        Args:
            last: the last column that computes for the request, or -1.
        """
        marks: list[tuple[float, str]] = [
            (story.arrival_s, "waiting"),
            *((wait.start_s, wait.kind) for wait in story.waits),
        ]
        for index in story.iterations:
            one = self.history.iterations[index]
            marks.append((one.start_s, "preprocessing" if one.preprocesses else "running"))
        states = {column(at_s): state for at_s, state in sorted(marks, key=lambda mark: mark[0])}
        end = self.finished.get(story.id)
        if story.reason == FinishReason.ABORTED.value and story.ended_s is not None:
            end = max(column(story.ended_s), last + 1)
        if end is not None:
            states = {at: state for at, state in states.items() if at < end} | {end: "finished"}
        changes = [(at, state) for (_, before), (at, state) in pairwise([(-1, ""), *states.items()]) if state != before]
        return [[at for at, _ in changes], [STATES.index(state) for _, state in changes]]

    def _slots(self) -> Object:
        """Add the owners of slots to the steps; return the sets of owners, or `tooMany`."""
        highest = highest_slot(self.run.events)
        if highest > MOST_SLOTS:
            return {"tooMany": highest}
        changes = SlotChanges(self.number)
        moved: dict[str, list[list[Any]]] = {}
        for column, frame in enumerate(books(self.run.events)):
            told = changes.column(frame)
            self.steps[column] |= {name: value for name, value in told.items() if value}
            for (name, kind), count in frame.effects.moved.items():
                moved.setdefault(name, []).append([column, kind, count])
        for name, moves in moved.items():
            self.requests[self.number[name]]["moves"] = moves
        return changes.told() | {"block": block_size(self.run.events), "shared": first_shared(self.run.events)}

    def _told(self, piece: Piece) -> int:
        for i, shared in enumerate(self.waits.passed):
            if piece.told is shared:
                return -1 - i
        return self._reason(*piece.told[piece.first][1:])

    def _step(self, event: Event) -> None:
        number = self.number
        self.workers = max(self.workers, event["worker"] + 1)
        times = _times(event)
        for name, reason in event["finished"].items():
            self._ended(name, reason, times[1])
            self.finished[name] = len(self.steps) + 1
        waves = event["waves"]
        told = {
            "n": event["step"],
            "k": event["worker"],
            "t": times,
            "w": [self._work(*work) for work in event["work"]],
            "a": [number[name] for name in event["admitted"]],
            "e": [number[name] for name in event["evicted"]],
            "ph": event["phase"] if event["phase"] != Phase.RUNNING.value else None,
            "sh": event.get("shape"),
            "wv": waves if len(waves) > 1 else None,
            "ln": event.get("lanes"),
            "m": as_drawn(event)["moves"],
            "ru": [[number[name], *found] for name, *found in event.get("reused", ())],
            "y": self._reasons(event["step"]),
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


def _workers_asked_for(header: Event) -> int:
    """Return the number of workers that an option gave the run, or 1."""
    told = str(header.get("options", {}).get("batching.workers", 1))
    return min(max(1, int(told)), MOST_WORKERS) if told.isdecimal() and told.isascii() and len(told) < 9 else 1


def _in_utf16(text: str, ends: list[int]) -> list[int]:
    """Convert indices in a text to JavaScript's: a character beyond 16 bits counts as two.

    >>> _in_utf16("a\U0001f600b", [1, 2, 3])
    [1, 3, 4]
    """
    if text.isascii():
        return ends
    units = [0, *accumulate(1 + (letter > "\uffff") for letter in text)]
    return [units[end] for end in ends]


def _seconds(value: float) -> float:
    return round(value, NANOSECONDS)


def _times(event: Event) -> list[float]:
    return [_seconds(event["wall"]["start_s"]), _seconds(event["wall"]["end_s"])]
