"""One versioned log of everything a run decided and when: one JSON object per line.

    {"event": "run", "schema": "minifuse.trace/4", "technique": ..., "kv_bytes_per_token": ..., ...}
    {"event": "request", "id": "r0", "arrival_s": 0.0, "prompt_tokens": 5, "max_new_tokens": 20, ...}
    {"event": "refused", "id": "r9", "why": "..."}
    {"event": "aborted", "id": "r8", "wall": {"end_s": ...}}
    {"event": "step", "step": 0, "work": [["r0", 0, 5]], "tokens": {"r0": [17]}, ..., "wall": {"start_s": ..., ...}}
    {"event": "wait", "reasons": [...], "wall": {"start_s": ..., "end_s": ...}}
    {"event": "end", "unfinished": [], "wall": {"end_s": ...}}

What was measured (times, transfers, gathers, messages between ranks) stands under "wall" and nowhere else, so two runs
that decided alike have equal lines once "wall" is removed (`decisions`). Every metric is computed from these lines
alone (`minifuse.metrics`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from minifuse.errors import UsageError
from minifuse.plan import Reason
from minifuse.report import NO_TRANSFERS, StepReport
from minifuse.request import Request

__all__ = ["SCHEMA", "Event", "Trace", "decisions", "read_trace"]

SCHEMA = "minifuse.trace/4"
Event = dict[str, Any]


class Trace:
    """Collects events, and writes each at once when given a file.

    Steps are kept as they are and turned into JSON only when the events are read: the hot loop should not pay for it.
    """

    def __init__(self, path: Path | None = None, **header: Any) -> None:
        self._events: list[Event | StepReport] = []
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = path.open("w", encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"The trace cannot be written to {path} ({error.strerror}): give --trace a file in a folder that "
                    "exists and that you may write to."
                ) from None
        self._add({"event": "run", "schema": SCHEMA, **header})

    def request(self, request: Request, num_history: int = 0) -> None:
        """A request was submitted, or, if it follows another, arrived with a history of so many tokens."""
        self._add(
            {
                "event": "request",
                "id": request.id,
                "arrival_s": request.arrival_s,
                "prompt_tokens": len(request.prompt),
                "max_new_tokens": request.max_new_tokens,
                "priority": request.priority,
                "conversation": request.conversation,
                "group": request.group,
                **({"after": request.after, "history_tokens": num_history} if request.after is not None else {}),
            }
        )

    def refused(self, request_id: str, why: str, received: bool = False) -> None:
        """A request was refused: at `submit`, or, if `received`, when it had arrived and was unfolded."""
        self._add({"event": "refused", "id": request_id, "why": why, **({"received": True} if received else {})})

    def aborted(self, request_id: str, end_s: float) -> None:
        self._add({"event": "aborted", "id": request_id, "wall": {"end_s": end_s}})

    def step(self, report: StepReport) -> None:
        self._add(report)

    def wait(self, reasons: Iterable[Reason], start_s: float, end_s: float) -> None:
        """The engine had requests and ran nothing."""
        wall = {"start_s": start_s, "end_s": end_s}
        self._add({"event": "wait", "reasons": [list(reason) for reason in reasons], "wall": wall})

    def end(self, unfinished: Iterable[str], end_s: float) -> None:
        self._add({"event": "end", "unfinished": list(unfinished), "wall": {"end_s": end_s}})
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self) -> Iterator[Event]:
        """Every event so far, in order."""
        return (_as_event(event) for event in self._events)

    def _add(self, event: Event | StepReport) -> None:
        self._events.append(event)
        if self._file is not None:
            self._file.write(json.dumps(_as_event(event)) + "\n")


def _as_event(event: Event | StepReport) -> Event:
    if isinstance(event, StepReport):
        wall: dict[str, Any] = {"start_s": event.started_s, "end_s": event.ended_s}
        if event.plan.moves:
            wall["moving_s"] = event.moving_s
        if event.messages.calls:
            wall["messages"], wall["message_bytes"] = event.messages
        if event.transfers != NO_TRANSFERS:
            to_host, to_device, exposed_s = event.transfers
            hidden = {"exposed_s": exposed_s, "hidden_s": event.transfers.hidden_s}
            wall["transfers"] = {"to_host": list(to_host), "to_device": list(to_device), **hidden}
        if event.gathers.copies:
            wall["gathers"] = list(event.gathers)
        return {"event": "step", **event.decisions(), "wall": wall}
    return event


def decisions(events: Iterable[Event]) -> bytes:
    """The events without their wall times, one per line: equal bytes mean equal decisions."""
    lines = (json.dumps({k: v for k, v in event.items() if k != "wall"}, sort_keys=True) for event in events)
    return "\n".join(lines).encode()


def read_trace(path: Path | str) -> list[Event]:
    """The events of a trace file.

    Raises:
        UsageError: the file is missing, is not a trace, or is one of another version.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        events: list[Event] = [json.loads(line) for line in lines]
    except OSError as error:
        raise UsageError(
            f"The trace {path} cannot be read ({error.strerror}): give a file that --trace wrote."
        ) from None
    except ValueError:
        raise UsageError(f"{path} is not a trace: give a file that --trace wrote.") from None
    if not events or not all(isinstance(event, dict) for event in events) or events[0].get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a trace of version {SCHEMA}: write it again with this version of minifuse.")
    return events
