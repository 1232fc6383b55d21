"""Output after its reader has closed the pipe."""

from __future__ import annotations

import os
import sys

__all__ = ["silence"]


def silence() -> None:
    """Discard what is still to be written: the interpreter's last flush would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
