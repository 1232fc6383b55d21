"""A trace on disk: an object of JSON a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TextIO

from minifuse.errors import UsageError

__all__ = ["TraceFile", "read_objects"]


class TraceFile:
    """Writes events. Each is in the file when `write` returns: what a run shows after that can be read up in it.

    If the file cannot be written any more, as on a full disk, it ends there: `failure` says why, and the run goes on. A
    stream whose reader has gone away ends as well, with a `failure` of "": nothing failed.
    After `close` it may be written on.

    Args:
        to: the path of the file; or a stream, which `close` leaves open.

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
            except OSError as error:  # what it could not write it tries again to write
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            is_file = isinstance(self._to, Path)
            name = self._to if is_file else "on standard output"
            self.failure = f"The trace {name} could not be written to its end: {error.strerror or error}."
            if isinstance(error, BrokenPipeError) and not is_file:
                self.failure = ""
            self.close()


def read_objects(path: Path) -> list[Any]:
    """What a file holds, up to where it was cut off.

    Raises:
        UsageError: it cannot be read, or a line of it is not JSON.
    """
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        found = [json.loads(line) for line in lines]
    except OSError as error:
        raise UsageError(
            f"The trace {path} cannot be read ({error.strerror}): give a file that --trace wrote."
        ) from None
    except ValueError:
        raise UsageError(f"{path} is not a trace: give a file that --trace wrote.") from None
    try:
        return [*found, json.loads(rest)]
    except ValueError:  # as a rule nothing, behind the last line; or a line that was cut off
        return found
