"""Prevents a student's process from changing the step counter or reaching its frames.

`minifuse.labs.student` runs this file by its path, so it imports nothing of minifuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

REFUSED = (  # beginnings of audit events: see "Audit events table" in Python's documentation
    *("sys.setprofile", "sys.monitoring", "sys._current", "sys.addaudithook", "code.__new__"),
    *("gc.", "ctypes.", "pickle."),
)
FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})


def guard(look: Callable[[str | bytes], None] | None) -> Callable[[Any], None]:
    """Add an audit hook, which cannot be removed.

    Args:
        look: is called with each source text that a module compiles into functions.

    Returns:
        A function that sets the trace function; nothing else may set it from here on.
    """
    settrace, refusal, frames, refused = sys.settrace, PermissionError, FRAMES, REFUSED
    tracing = counting = looking = False

    def hook(event, arguments):  # type: ignore[no-untyped-def]
        nonlocal looking
        if event == "compile":
            if look is None or looking or not counting or arguments[0] is None or arguments[1] != "<string>":
                return
            looking = True  # `look` compiles the text itself
            try:
                look(arguments[0])
            finally:
                looking = False
        elif event == "sys.settrace":
            if not tracing:  # asked for by the file; or by Python, after OutOfSteps and where there is no room to count
                room(50)
                raise refusal("a lab may not change the count of steps")
        elif event.startswith(refused) or (counting and event == "object.__getattr__" and arguments[1] in frames):
            raise refusal(f"a lab may not do this ({event})")

    def room(calls: int) -> None:
        if calls:  # else a RecursionError, which says what is wrong
            room(calls - 1)

    def trace(function):  # type: ignore[no-untyped-def]
        nonlocal tracing, counting
        tracing, counting = True, function is not None
        try:
            settrace(function)
        finally:
            tracing = False

    sys.addaudithook(hook)
    return trace
