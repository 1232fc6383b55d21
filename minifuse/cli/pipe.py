"""When whoever read our output has gone away."""

from __future__ import annotations

import os
import sys

__all__ = ["silence"]


def silence() -> None:
    """Let what is still to be written go nowhere: the interpreter's last flush would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
