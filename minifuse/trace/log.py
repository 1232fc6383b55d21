"""Logs everything that a run decided, and when: one JSON object per line.

    {"event": "run", "schema": "minifuse.trace/5", "technique": ..., "kv_bytes_per_token": ..., ...}
    {"event": "request", "id": "r0", "arrival_s": 0.0, "prompt_tokens": 5, "max_new_tokens": 20, ...}
    {"event": "request", "id": "r1", "wall": {"arrival_s": 2.7}, "after": "r0", "history_tokens": 24, ...}
    {"event": "request", "id": "r2", "arrival_s": 0.0, "history_tokens": 96, ...}   # continues an earlier run's text
    {"event": "request", "id": "r3", "arrival_s": 0.0, "user": "ann", ...}
    {"event": "refused", "id": "r9", "why": "..."}
    {"event": "answer", "id": "r0", "text": "42", "ends": [1, 2, 2]}
    {"event": "aborted", "id": "r8", "wall": {"end_s": ...}}
    {"event": "step", "step": 0, "work": [["r0", 0, 5]], "tokens": {"r0": [17]}, ..., "wall": {"start_s": ..., ...}}
    {"event": "wait", "reasons": [...], "wall": {"start_s": ..., "end_s": ...}}
    {"event": "end", "unfinished": [], "wall": {"end_s": ..., "other_cores": 0.3}}

A step writes only what is new in a sequence's block table since the sequence's last step: under "places",
[2, [9], 16] means the first two blocks of the last table, then block 9; a block has 16 slots. `whole_tables` puts the
tables together again. When a sequence has finished or was aborted, its next table, if there is one, is written whole.

If the model has a tokenizer, a file has texts too. The prompt of a request, without its history, stands under "text".
At the run's end, the file gets the answers; "ends" has the length of the answer's text after each token.

Measurements (times, transfers, gathers, messages between ranks) stand under "wall" and nowhere else. So two runs that
decided alike have equal lines once "wall" is removed (`decisions`). Every metric is computed from these lines alone
(`minifuse.trace.metrics`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

from minifuse.core.errors import UsageError
from minifuse.core.measured import measured_of
from minifuse.core.observers import RunObserver
from minifuse.core.plan import Reason
from minifuse.core.report import StepReport
from minifuse.core.request import Request, Sequence
from minifuse.core.requests import Requests
from minifuse.execute.cores import OtherWork
from minifuse.trace.file import TraceFile, parse, read_text
from minifuse.trace.step import BlockTables, step_decisions, step_figures

SCHEMA = "minifuse.trace/5"
Event = dict[str, Any]


class Texts(Protocol):
    """Decodes tokens; None if undecodable."""

    def text(self, tokens: Seq[int]) -> str | None: ...

    def pieces(self, tokens: Seq[int]) -> tuple[str, list[int]] | None:
        """Return the text, and the number of its characters after each token."""
        ...


class Trace(RunObserver):
    """Collects events, and writes each at once if given a file.

    Steps are kept as they are, and become JSON only when the events are read, so that the hot loop does not pay for it.

    Args:
        path: the file or stream to write to; None: no file is written.
        into: is called with every event as it happens; steps come without places and layout, and with the number of
            plans submitted so far. Then no event is kept, and a long run takes no more memory than a short one.
        texts: decodes prompts at once, and answers at the run's end; None: the trace has no texts.
        others: counts the cores that other processes used, for the last event; None if time is virtual.
        header: further keys of the first event.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path | TextIO | None = None,
        into: Callable[[Event], None] | None = None,
        others: OtherWork | None = None,
        texts: Texts | None = None,
        **header: Any,
    ) -> None:
        self.header: Event = {"event": "run", "schema": SCHEMA, **header}
        self._events: list[Event | StepReport] = []
        self._into = into
        self._others = others
        self._texts = texts
        self._launched = math.inf  # plans submitted so far, once known
        self._num_answers = 0  # how many answers have been written
        self._file = None if path is None else TraceFile(path)
        self._told = BlockTables()  # the tables that the file has
        self._add(self.header)

    @property
    def failure(self) -> str | None:
        """Return why the file ends before the run does, or None."""
        return None if self._file is None else self._file.failure

    def requested(self, request: Request, num_history: int = 0, *, measured: bool = False) -> None:
        """Write that a request was submitted or, if it follows another, arrived.

        Args:
            num_history: how many leading tokens of the prompt are history.
            measured: the arrival time was measured (at submission, or when the last turn ended), not given.
        """
        arrival = {"arrival_s": request.arrival_s}
        history = None if request.after is None and not num_history else num_history
        text = None if self._texts is None else self._texts.text(request.prompt[num_history:])
        more = {"user": request.user, "after": request.after, "history_tokens": history, "text": text}
        self._add(
            {
                "event": "request",
                "id": request.id,
                **({"wall": arrival} if measured else arrival),
                "prompt_tokens": len(request.prompt),
                "max_new_tokens": request.max_new_tokens,
                "priority": request.priority,
                "conversation": request.conversation,
                "group": request.group,
                **{name: value for name, value in more.items() if value is not None},
            }
        )

    def refused(self, request_id: str, why: str, received: bool = False) -> None:
        """Write that a request was refused: at `submit` or, if `received`, after its arrival."""
        self._add({"event": "refused", "id": request_id, "why": why, **({"received": True} if received else {})})

    def aborted(self, request_id: str, end_s: float) -> None:
        self._add({"event": "aborted", "id": request_id, "wall": {"end_s": end_s}})

    def completed(self, report: StepReport, requests: Requests | None = None) -> None:
        if requests is not None:
            self._launched = requests.in_flight.num_launched
        self._add(report)

    def waited(self, reasons: Iterable[Reason], end_s: float, in_vain: bool, requests: Requests) -> None:
        """Write a wait if the engine had requests and ran nothing."""
        if requests.sequences and not requests.in_flight:
            wall = {"start_s": requests.now, "end_s": end_s}
            self._add({"event": "wait", "reasons": list(reasons), "wall": wall})

    def ended(self, unfinished: Iterable[str], end_s: float, finished: Iterable[Sequence] = ()) -> None:
        """Write that the run has ended.

        Args:
            finished: all ended requests, in order. Their answers are decoded only now: decoding takes too long
                for an iteration.
        """
        if self._texts is not None:
            for sequence in islice(finished, self._num_answers, None):  # a trace may end more than once
                self._num_answers += 1
                if (tokens := sequence.answer) and (known := self._texts.pieces(tokens)) is not None:
                    self._add({"event": "answer", "id": sequence.id, "text": known[0], "ends": known[1]})
        wall = {"end_s": end_s}
        if self._others is not None and (cores := self._others.cores()) is not None:
            wall["other_cores"] = cores
        self._add({"event": "end", "unfinished": list(unfinished), "wall": wall})
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def events(self) -> Iterator[Event]:
        """Return every event so far, in order, as in a file.

        Raises:
            UsageError: events went to `into`, and were not kept.
        """
        return (json.loads(json.dumps(event)) for event in self.kept())

    def kept(self) -> Iterator[Event]:
        """Return what `events` returns, several times faster, with tuples instead of lists."""
        if self._into is not None:
            raise UsageError(
                "The events of this run were not kept but handed to what was given as `into`: leave `into` out, or "
                "give a path and read its file."
            )
        told = BlockTables()
        return (_as_event(event, told) for event in self._events)

    def _add(self, event: Event | StepReport) -> None:
        if self._into is None:
            self._events.append(event)
        elif isinstance(event, StepReport):
            self._into({"event": "step", **step_figures(event), "launched": self._launched, "wall": _wall(event)})
        else:
            self._into(event)
        if self._file is not None:
            self._file.write(_as_event(event, self._told))


def _as_event(event: Event | StepReport, told: BlockTables) -> Event:
    """Turn a step into an event with only those blocks that `told` lacks."""
    if isinstance(event, StepReport):
        event = {"event": "step", **step_decisions(event, told), "wall": _wall(event)}
    told.forget(event)
    return event


def _wall(event: StepReport) -> dict[str, Any]:
    """Return what was measured of a step."""
    wall: dict[str, Any] = {"start_s": event.started_s, "end_s": event.ended_s}
    measured = measured_of(event)
    if event.plan.moves:
        wall["moving_s"] = measured.moving_s
    if measured.num_messages:
        wall |= {"messages": measured.num_messages, "message_bytes": measured.message_bytes}
    if measured.to_host_bytes or measured.to_device_bytes or measured.exposed_s:
        wall["transfers"] = {
            "to_host": [measured.to_host_bytes, measured.to_host_s],
            "to_device": [measured.to_device_bytes, measured.to_device_s],
            "exposed_s": measured.exposed_s,
            "hidden_s": measured.hidden_s,
        }
    if measured.on_host_s:
        wall["on_host"] = [measured.on_host_s, measured.awaited_s]
    if measured.num_gathers:
        wall["gathers"] = [measured.num_gathers, measured.gathered_rows, measured.gathering_s]
    return wall


def arrival_of(request: Event) -> tuple[float, bool]:
    """Return when a request arrives, in seconds, and whether it has arrived.

    A turn has arrived once its arrival was measured; until then the request that it follows has not ended.
    """
    return request.get("wall", request)["arrival_s"], request.get("after") is None or "wall" in request


def decisions(events: Iterable[Event]) -> bytes:
    """Write the events without wall times, one per line: equal bytes mean equal decisions."""
    lines = (json.dumps({k: v for k, v in event.items() if k != "wall"}, sort_keys=True) for event in events)
    return "\n".join(lines).encode()


def whole_tables(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events with whole block tables: places in blocks are [blocks, size]."""
    told = BlockTables()
    for event in events:
        if event["event"] == "step":
            works = zip(event["work"], event["places"], strict=True)
            event = {**event, "places": [told.whole(work[0], place) for work, place in works]}
        yield event
        told.forget(event)


def read_trace(path: Path | str) -> list[Event]:
    """Read the events of a trace file, or as many as a killed run wrote.

    Raises:
        UsageError: the file is missing, not a trace, or a trace of another version.
    """
    return parse(read_text(Path(path), str(path)), str(path), SCHEMA)[0]
