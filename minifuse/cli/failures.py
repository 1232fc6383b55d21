"""Turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import re

from minifuse.cli.plugin import plugin_frame, plugin_stages
from minifuse.core.errors import LawBroken, MinifuseError, StageFault, UsageError
from minifuse.io.parsing import quoted

FAILED, MACHINE = 1, 3
OUT_OF_MEMORY = re.compile("out of memory|(?:can't|cannot) allocate memory", re.IGNORECASE)
TRACEBACK = "MINIFUSE_TRACEBACK"  # an environment variable; if set, defects are shown with a traceback


def told(error: BaseException) -> tuple[str, int]:
    """Return an error's sentence and exit code. If `TRACEBACK` is set, raise defects again.

    A `MinifuseError` has a sentence of its own. Anything else is a mistake of a plugin, if the error passed through its
    code, or a defect of minifuse.
    """
    if lacking := _lacks_memory(error) or _lacks_memory(error.__cause__):
        if os.environ.get(TRACEBACK):
            raise error
        if isinstance(error, StageFault):  # its text says where
            lacking = one_sentence(error.what)
        return f"The machine has too little memory ({lacking}): free some, or ask for less at once.", MACHINE
    if isinstance(error, StageFault):
        if os.environ.get(TRACEBACK):
            raise error
        return f"{one_sentence(error.what)}.", error.exit_code
    if isinstance(error, LawBroken):
        whose = f": look at {theirs}" if (theirs := plugin_stages()) else "; this is a defect in its code"
        return f"A stage broke a law ({one_sentence(error)}){whose}.", error.exit_code
    if isinstance(error, MinifuseError):
        return str(error), error.exit_code
    place = plugin_frame(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and not place:
        return f"The name {quoted(str(error.filename))} is too long: give a shorter one.", UsageError.exit_code
    if isinstance(error, OSError) and not place:
        return f"The system refused ({error}): free what it lacks, or use another place.", MACHINE
    if os.environ.get(TRACEBACK):
        raise error
    what = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".: ")
    if place:
        return f"The plugin failed at {place} ({what}): correct it.", FAILED
    if theirs := plugin_stages():
        show = f"run again with {TRACEBACK}=1 to see where"
        return f"minifuse failed ({what}) beside the stages of a plugin, {theirs}: {show}.", FAILED
    return f"minifuse has a defect ({what}): run again with {TRACEBACK}=1 and report what it shows.", FAILED


def _lacks_memory(error: BaseException | None) -> str | None:
    """Return the message if an allocation of Python or torch failed; None for other errors."""
    what = one_sentence(error)
    if isinstance(error, MemoryError):
        return what or type(error).__name__
    return what if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(what) else None  # torch: any type


def one_sentence(message: object) -> str:
    """Write a message on one line, without its full stop."""
    return " ".join(str(message).split()).rstrip(".")
