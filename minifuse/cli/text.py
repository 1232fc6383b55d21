"""Consoles, one-line messages, and units."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from minifuse.core.errors import LONGEST, one_line, shortened
from minifuse.core.request import Request

if TYPE_CHECKING:
    from rich.console import Console


LEAST_WIDTH = 40  # of tables: narrower ones would show single letters below one another
LEAST_S = 1.0  # how long a run takes before it says how much time is left
UNITS = {"transformer": ("tokens", "KV"), "cells": ("nodes", "states")}  # units of work and of memory, by kind of model


def console(stderr: bool = False) -> Console:
    """Make a console; it has no colours on a pipe or if NO_COLOR is set."""
    from rich.console import Console  # costs a fifth of the time that --help takes

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # raises the error being handled; rich would end the program

    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    out = PipeConsole(file=stream, color_system=None if plain else "auto", highlight=False, markup=False, emoji=False)
    if out.width < LEAST_WIDTH:
        out.width = LEAST_WIDTH
    return out


def tell(message: str) -> None:
    """Print a note or an error on one line of stderr, whatever it quotes."""
    print(shortened(one_line(message), 2 * LONGEST), file=sys.stderr, flush=True)


def counted(requests: Iterable[Request]) -> str:
    """Return "requests", or "prompts" if a request has several prompts."""
    return "requests" if all(request.group is None for request in requests) else "prompts"


def time_left(done: int, total: int, began: float) -> str:
    """Write `, about 40 s left`, or "" while too little is known.

    Args:
        began: when the work started, by `time.perf_counter`.
    """
    elapsed = time.perf_counter() - began
    if not 0 < done < total or elapsed < LEAST_S:
        return ""
    seconds = elapsed / done * (total - done)
    if seconds < 90:
        return f", about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f", about {minutes} min left" if minutes < 90 else f", about {seconds / 3600:.1f} h left"
