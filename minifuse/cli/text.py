"""Consoles for both streams, text that fits on one line of them, and the units of each kind of model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from minifuse.request import Request

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["UNITS", "console", "counted", "one_line", "shortened"]

PROMPT_WIDTH = 36
UNITS = {"transformer": ("tokens", "KV"), "cells": ("nodes", "states")}  # of work and of memory, by kind of model


def console(stderr: bool = False) -> Console:
    """A console without colours where there is no terminal, or where NO_COLOR is set."""
    from rich.console import Console  # costs a fifth of the time that --help takes

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # called while the error is handled; rich itself would end the program

    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    return PipeConsole(file=stream, color_system=None if plain else "auto", highlight=False, markup=False, emoji=False)


def one_line(text: str) -> str:
    """What a terminal can show on one line: a newline becomes \\n, and nothing can steer the terminal.

    >>> one_line("a\\nb\\x1b[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shortened(text: str, width: int = PROMPT_WIDTH) -> str:
    """The beginning and the end of a text, when the whole is too long.

    >>> shortened("count from 10 to 99", 12)
    'count...o 99'
    """
    if len(text) <= width:
        return text
    tail = (width - 3) // 2
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def counted(requests: Iterable[Request]) -> str:
    """What a count of them counts: requests, or prompts as soon as one of the requests has several."""
    return "requests" if all(request.group is None for request in requests) else "prompts"
