"""The command line. `main` is its edge: whatever goes wrong inside becomes one sentence on stderr and an exit code.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | a request failed (refused, interrupted), or a check did not hold |
| 2 | bad usage or input: nothing was started |
| 3 | the machine lacks something |
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from minifuse.cli.app import make_app
from minifuse.cli.pipe import silence
from minifuse.cli.plugin import plugin_frame, plugin_stages
from minifuse.errors import LawBroken, MinifuseError, StageFault

__all__ = ["main"]

FAILED, USAGE, MACHINE = 1, 2, 3
INTERRUPTED = 130
ParseError: Any = typer.BadParameter.__base__  # the usage error of typer; of click, with an older typer
TRACEBACK = "MINIFUSE_TRACEBACK"  # an environment variable: set, a defect shows where it happened


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, `sys.argv` by default, and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character shows its code
    try:
        code = _work(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()
        return 0  # the reader closed the pipe (`minifuse list | head -1`)
    return code


def _work(arguments: Sequence[str] | None) -> int:
    try:
        return _parse(arguments)()
    except KeyboardInterrupt:
        return _fail("Interrupted before there was anything to show: run it again.", FAILED)
    except StageFault as fault:
        if os.environ.get(TRACEBACK):
            raise
        return _fail(f"{_sentence(fault.what)}.", fault.exit_code)
    except LawBroken as broken:
        whose = f": look at {theirs}" if (theirs := plugin_stages()) else "; this is a defect in its code"
        return _fail(f"A stage broke a law ({_sentence(broken)}){whose}.", broken.exit_code)
    except MinifuseError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"The system refused ({error}): free what it lacks, or use another place.", MACHINE)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".: ")
        if place := plugin_frame(error):
            return _fail(f"The plugin failed at {place} ({what}): correct it.", FAILED)
        if theirs := plugin_stages():
            show = f"run again with {TRACEBACK}=1 to see where"
            return _fail(f"minifuse failed ({what}) beside the stages of a plugin, {theirs}: {show}.", FAILED)
        return _fail(f"minifuse has a defect ({what}): run again with {TRACEBACK}=1 and report what it shows.", FAILED)


def _parse(arguments: Sequence[str] | None) -> Callable[[], int]:
    """The work of a command line. typer only parses; the work is done outside of it."""
    try:
        typed = None if arguments is None else [*arguments]  # `list` is the module of that command here
        work: Any = make_app()(typed, "minifuse", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except ParseError as error:
        message = _fail_text(error)
        return lambda: _fail(message, USAGE)
    if work == INTERRUPTED:
        raise KeyboardInterrupt  # newer typers return this code instead of raising
    return work if callable(work) else lambda: 0  # --help and --version have printed everything


def _fail_text(error: Any) -> str:
    """A usage error of typer as one sentence that ends with the help to read."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "minifuse"
    message = _sentence(error.format_message())
    return f"{message} See {command} --help." if message.endswith("?") else f"{message}: see {command} --help."


def _sentence(message: object) -> str:
    return " ".join(str(message).split()).rstrip(".")


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code
