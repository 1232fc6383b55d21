"""A line on the terminal while something is loaded that cannot show its progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLEAR = "\r\x1b[2K"


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show what is being loaded on stderr, at once, and take it away afterwards; nothing where there is no terminal.

    Nothing may be printed in the block. rich is not used: importing it is part of what takes long.
    """
    stream = sys.stderr
    shown = stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if shown:
        stream.write(f"loading {what} ...")
        stream.flush()
    try:
        yield
    finally:
        if shown:
            stream.write(CLEAR)
            stream.flush()
