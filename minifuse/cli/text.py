"""Consoles for both streams, text that fits on one line of them, and the units of each kind of model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from minifuse.core.errors import LONGEST, one_line, shortened
from minifuse.core.request import Request

if TYPE_CHECKING:
    from rich.console import Console


LABEL_WIDTH = 20
LEAST_WIDTH = 40  # of tables: narrower, they would be letters below one another
LEAST_S = 1.0  # of a run, before it tells how long it will take
UNITS = {"transformer": ("tokens", "KV"), "cells": ("nodes", "states")}  # of work and of memory, by kind of model


def console(stderr: bool = False) -> Console:
    """A console without colours where there is no terminal, or where NO_COLOR is set."""
    from rich.console import Console  # costs a fifth of the time that --help takes

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # called while the error is handled; rich itself would end the program

    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    out = PipeConsole(file=stream, color_system=None if plain else "auto", highlight=False, markup=False, emoji=False)
    if out.width < LEAST_WIDTH:
        out.width = LEAST_WIDTH
    return out


def tell(message: str) -> None:
    """Print a note or an error on stderr, as one line, whatever it quotes."""
    print(shortened(one_line(message), 2 * LONGEST), file=sys.stderr, flush=True)


def first_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first few of many.

    >>> first_few(["r0", "r1", "r2"], 2)
    'r0, r1 and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + rest


def counted(requests: Iterable[Request]) -> str:
    """What a count of them counts: requests, or prompts as soon as one of the requests has several."""
    return "requests" if all(request.group is None for request in requests) else "prompts"


def time_left(done: int, total: int, began: float) -> str:
    """`, about 40 s left`, if the rest takes as long as what has been done; nothing where that does not tell yet.

    Args:
        began: as `time.perf_counter` gives it.
    """
    elapsed = time.perf_counter() - began
    if not 0 < done < total or elapsed < LEAST_S:
        return ""
    seconds = elapsed / done * (total - done)
    if seconds < 90:
        return f", about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f", about {minutes} min left" if minutes < 90 else f", about {seconds / 3600:.1f} h left"
