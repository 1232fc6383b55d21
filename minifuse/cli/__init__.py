"""The command line: `main` turns every error into a sentence and an exit code.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | a request failed (refused, logits not finite), an answer, trace or page was not stored, or a check did not hold |
| 2 | bad usage or input: nothing was started |
| 3 | the machine lacks something |
| 130 | Ctrl-C came before the end |
| 129, 143 | SIGHUP, or SIGTERM, came before the end: 128 and the number of the signal |
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

from minifuse.cli.failures import one_sentence, told
from minifuse.cli.status import loading
from minifuse.cli.streams import has_stdout, repair, result_alone, result_stream, silence
from minifuse.cli.text import tell
from minifuse.core.errors import LONGEST, shortened
from minifuse.ctrl_c import INTERRUPTED, NOTHING_SHOWN, SHOW_CURSOR
from minifuse.execute.cores import keep_compiled, keep_freed_memory, wait_briefly

__all__ = ["main"]

USAGE, MACHINE = 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, `sys.argv` by default, and return its exit code."""
    typed = [*(sys.argv[1:] if arguments is None else arguments)]  # `list` here is the module of the command `list`
    repair()
    wait_briefly()
    keep_compiled()
    keep_freed_memory()
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"
    if not has_stdout():
        return _fail("Standard output is closed: redirect it to a file, or to /dev/null.", MACHINE)
    try:
        with result_alone() if _is_for_a_result(typed) else nullcontext():
            code = _work(typed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stderr.isatty():  # an interrupted picture may have left the cursor hidden
            print(SHOW_CURSOR, end="", file=sys.stderr)
        return _fail(NOTHING_SHOWN, INTERRUPTED)
    except BrokenPipeError:
        silence()
        return 0  # the reader closed the pipe (`minifuse list | head -1`)
    except OSError as error:
        what = f"Standard output cannot be written to ({error.strerror or error}): redirect it to another place."
        return _fail(what, MACHINE)
    return code


def _is_for_a_result(typed: list[str]) -> bool:
    """Return whether only a result may go to standard output: --json, or --trace -."""
    options = typed[: typed.index("--")] if "--" in typed else typed
    if {"--help", "-h", "--version"} & {*options}:
        return False
    flags = ("--trace", "--out")
    return bool({"--json", *(f"{flag}=-" for flag in flags)} & {*options}) or any(
        (flag, "-") in pairwise(options) for flag in flags
    )


def _work(typed: list[str]) -> int:
    try:
        return _parse(typed)()
    except BrokenPipeError:
        raise
    except (Exception, SystemExit) as error:  # a SystemExit comes from a plugin
        if isinstance(error, OSError) and error.filename is None:
            print(file=result_stream(), flush=True)  # raises the error again if standard output is what failed
        return _fail(*told(error))


def _parse(typed: list[str]) -> Callable[[], int]:
    """Parse a command line; return a function that does its work outside of typer."""
    with loading("minifuse"):
        import typer

        from minifuse.cli.app import parser
    parse_error: Any = typer.BadParameter.__base__  # typer's usage error, or click's if typer is older
    try:
        work: Any = parser(typed)(typed, "minifuse", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except parse_error as error:
        message = _fail_text(error)
        return lambda: _fail(message, USAGE)
    if work == INTERRUPTED:
        raise KeyboardInterrupt  # newer typers return this code instead of raising
    return work if callable(work) else lambda: 0  # --help and --version have printed everything


def _fail_text(error: Any) -> str:
    """Write a usage error of typer as a sentence that points to the help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "minifuse"
    if getattr(error, "option_name", None) == "--plugin":
        return f"--plugin stands before the command: minifuse --plugin FILE.py {command.partition(' ')[2]}."
    message = shortened(one_sentence(error.format_message()), LONGEST // 2)
    return f"{message} See {command} --help." if message.endswith("?") else f"{message}: see {command} --help."


def _fail(message: str, code: int) -> int:
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            silence()
    tell(f"error: {message}")
    return code
