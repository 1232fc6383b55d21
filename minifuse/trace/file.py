"""Writes and reads a trace on disk: one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TextIO

from minifuse.core.errors import UsageError
from minifuse.io.lines import BYTE_ORDER_MARK, read_bounded


class TraceFile:
    """Writes events; each is in the file when `write` returns.

    If writing fails, as on a full disk, the trace ends there: `failure` says why, and the run goes on. If the reader of
    a stream has gone away, the trace ends too, but `failure` is "": nothing failed.
    A file that was closed is opened again by the next `write`.

    Args:
        to: a file's path, or a stream, which `close` leaves open.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, to: Path | TextIO) -> None:
        self.failure: str | None = None
        self._to = to
        self._file: TextIO | None = None
        try:
            self._open("w")
        except OSError as error:
            raise UsageError(
                f"The trace cannot be written to {to} ({error.strerror}): give --trace a file in a folder that "
                "exists and that you may write to."
            ) from None

    def _open(self, mode: Literal["w", "a"]) -> TextIO:
        to = self._to
        self._file = file = to.open(mode, encoding="utf-8") if isinstance(to, Path) else to
        return file

    def write(self, event: dict[str, Any]) -> None:
        if self.failure is None:
            try:
                file = self._file or self._open("a")
                file.write(json.dumps(event) + "\n")
                file.flush()
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None and isinstance(self._to, Path):
            try:
                file.close()
            except OSError as error:  # closing writes what is still buffered
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            is_file = isinstance(self._to, Path)
            name = self._to if is_file else "on standard output"
            self.failure = f"The trace {name} could not be written to its end: {error.strerror or error}."
            if isinstance(error, BrokenPipeError) and not is_file:
                self.failure = ""
            self.close()


def read_text(where: Path | TextIO, name: str) -> str:
    """Return the text of a file or a stream.

    Args:
        name: names the trace in messages.

    Raises:
        UsageError: the trace cannot be read, or is not text.
        MachineError: the trace is too long.
    """
    try:
        if not isinstance(where, Path):
            return read_bounded(where, f"The trace on {name}")
        with where.open(encoding="utf-8") as file:
            return read_bounded(file, f"The trace {name}")
    except OSError as error:
        raise UsageError(
            f"The trace {name} cannot be read ({error.strerror}): give a file that --trace wrote."
        ) from None
    except ValueError:  # bytes that are no text; or a zero byte in the name
        raise _no_trace(name) from None


def parse(text: str, name: str, schema: str) -> tuple[list[dict[str, Any]], int | None]:
    """Return a trace's events, and the number of a line that is cut off.

    The last line may be cut off if the run was killed.

    Args:
        name: names the trace in messages.
        schema: the only version that can be read.

    Raises:
        UsageError: the text is empty, not a trace, or a trace of another version.
    """
    lines = text.removeprefix(BYTE_ORDER_MARK).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UsageError(f"{name} is empty, and is not a trace: give a file that --trace wrote.")
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        expected = "an event"
        try:
            event: Any = json.loads(line)
        except (ValueError, RecursionError):
            event, expected = None, "JSON"
            if number == len(lines) > 1:
                return events, number
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            if number == 1 and not line.startswith('{"event"'):
                raise _no_trace(name)
            wrong = f"Line {number} of {name} is not {expected}, so that it"
            if expected == "JSON" and number == len(lines):
                wrong = f"{name} was cut off within its first line, and"
            raise UsageError(f"{wrong} is not a trace: write it again with --trace.")
        if number == 1:
            _check_version(event, name, schema)
        events.append(event)
    return events, None


def _check_version(first: dict[str, Any], name: str, schema: str) -> None:
    found = first.get("schema")
    if first["event"] != "run" or not isinstance(found, str) or found.split("/")[0] != schema.split("/")[0]:
        raise _no_trace(name)
    if found != schema:
        raise UsageError(
            f"{name} is not a trace of version {schema}, which this minifuse reads, but of version {found}: write it "
            "again with this version of minifuse."
        )


def _no_trace(name: str) -> UsageError:
    return UsageError(f"{name} is not a trace: give a file that --trace wrote.")
