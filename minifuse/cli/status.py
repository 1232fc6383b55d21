"""Shows on one line of stderr what is being done; each change replaces the line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from types import TracebackType

from minifuse.cli.text import tell
from minifuse.core.errors import one_line, shortened
from minifuse.serve.interrupt import uninterrupted

CLEAR = "\r\x1b[2K"
GAP_S = 0.2  # the minimum time between two lines that differ only in details


class Status:
    """Keeps one line on a terminal; elsewhere, prints a line per step, without details.

    This does not use rich, because importing rich itself takes long.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._next_s = 0.0
        stream = sys.stderr
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        self._shown = False
        self._live = stream is not None and stream.isatty() and not dumb

    def __enter__(self) -> Status:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()

    def say(self, what: str, details: str = "") -> None:
        """Show a step; on a terminal, also show its details."""
        new = what != self._last
        self._last = what
        if not self._live:
            if new:
                tell(f"{self._name}: {what}")
        elif new or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + GAP_S
            self.show(f"{self._name}: {what}{details}")

    def show(self, text: str) -> None:
        """Replace the line by this text; without a terminal, do nothing."""
        if self._live:
            self.clear()
            sys.stderr.write(shortened(one_line(text), get_terminal_size().columns - 1))
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            with uninterrupted():
                sys.stderr.write(CLEAR)
                sys.stderr.flush()
                self._shown = False


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show on a terminal what is being loaded. The block must not print anything."""
    with Status(what) as status:
        status.show(f"loading {what} ...")
        yield
