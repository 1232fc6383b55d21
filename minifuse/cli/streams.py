"""Repairs the standard streams, and keeps stdout for a command's result."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


STDIN, STDOUT, STDERR = range(3)
_result: ContextVar[TextIO | None] = ContextVar("result", default=None)  # standard output, in `result_alone`


def repair() -> None:
    """Replace closed streams, and an error stream that cannot be written to.

    Otherwise the next file that is opened, for example a trace, would get the number of the closed stream, and printed
    text would end up in that file. A message that cannot be written to stderr is lost without an error.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # characters that a terminal cannot show are shown as codes
    if sys.stderr is None or _number(sys.stderr) == STDERR:
        errors = io.BufferedWriter(_Lossy(STDERR, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)
    for stream, number in ((sys.stdout, STDOUT), (sys.stderr, STDERR)):
        if stream is not None and _number(stream) == number:
            stream.close = stream.flush  # type: ignore[method-assign]  # a plugin must not close it for all


class _Lossy(io.FileIO):
    """A file that drops what cannot be written."""

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def has_stdout() -> bool:
    """Return whether standard output was open when this process began."""
    return sys.stdout is not None


def is_stdout(path: Path) -> bool:
    """Return whether a path is standard output under any name; /dev/null never is."""
    number = _number(result_stream())
    try:
        there, ours = path.stat(), os.fstat(-1 if number is None else number)
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return False
    return os.path.samestat(there, ours) and not (stat.S_ISCHR(ours.st_mode) and not os.isatty(number or STDOUT))


def silence() -> None:
    """Discard the buffer of a broken stream: the flush at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
            stream.flush()
    os.close(nowhere)


@contextmanager
def result_alone() -> Iterator[None]:
    """Redirect to stderr everything that the block and its child processes print.

    Only text written to `result_stream` goes to standard output, so that no print of a plugin spoils the document.
    """
    stdout = result = sys.stdout
    number = None
    if _number(stdout) == STDOUT:
        stdout.flush()
        number = os.dup(STDOUT)
        result = open(number, "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115 (closed below)
        os.dup2(STDERR, STDOUT)
    sys.stdout = sys.stderr
    token = _result.set(result)
    try:
        yield
    finally:
        _result.reset(token)
        sys.stdout = stdout
        if number is not None:
            os.dup2(number, STDOUT)
            with suppress(OSError):  # `print_result` has raised this error, or the trace has reported it
                result.close()


def result_stream() -> TextIO:
    """Return the stream for a command's result: the real standard output."""
    return _result.get() or sys.stdout


def print_result(text: str) -> None:
    """Print the result of a command on the real standard output."""
    print(text, file=result_stream(), flush=True)


def _number(stream: TextIO) -> int | None:
    """Return a stream's file descriptor; None if the stream is in memory, as in tests."""
    try:
        return stream.fileno()
    except (OSError, ValueError):  # ValueError: the stream has been closed
        return None
