"""What Ctrl-C does to the process of the command line, from its first moment to its last.

| Ctrl-C comes | the process |
|---|---|
| while a module is imported, first of all this package | ends at once: imports swallow exceptions, torch's among them |
| while it works | raises `KeyboardInterrupt`; a run holds it back where it must not be cut (`serve/interrupt.py`) |
| for the second time | ends at once, so that nothing hangs or is torn down while threads run |
| twice within a second | as for the first time: a key that was hit twice asks for no more than once |
| when what the last one ended is behind it | as for the first time: an answer of a chat (`dealt_with`) |
| when the work has been done | ends at once with the exit code of that work |

A program that imports minifuse keeps its own handler. Nothing is imported here that takes time.
"""

from __future__ import annotations

import atexit
import os
import sys
from time import monotonic

TYPE_CHECKING = False  # as type checkers know it; importing `typing` takes as long as all else here
if not TYPE_CHECKING:
    import _signal as signal  # what `signal` is made of: that imports `enum`, which takes longer than all else
else:
    import signal
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

    Handler = Callable[[int, FrameType | None], object]

__all__ = ["INTERRUPTED", "NOTHING_SHOWN", "dealt_with", "finish", "importing", "install"]

INTERRUPTED = 130  # the exit code that shells give to what Ctrl-C has ended
NOTHING_SHOWN = "Interrupted before there was anything to show: run it again."
ONE_KEYSTROKE_S = 1.0  # a second Ctrl-C within this time is the first one's
TWICE = "Interrupted twice: ended at once, without what was still to be written."
SHOW_CURSOR = "\x1b[?25h"  # a live picture hides it


def install() -> None:
    """Take over Ctrl-C if this is the process of the command line, and if it does not ignore Ctrl-C (`nohup`)."""
    if _is_command_line() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handler = _CommandLine()
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = handler.unraisable


def finish(code: int) -> None:
    """The work is done, with this exit code: from now on Ctrl-C can change it no more."""
    if isinstance(signal.getsignal(signal.SIGINT), _CommandLine):
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))  # should a thread not end
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the interpreter gives up handlers as it ends


def dealt_with() -> None:
    """What a Ctrl-C was to end has ended, and the process goes on: the next is a first one again."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _CommandLine):
        handler.came_s = None


def importing(frame: FrameType | None) -> bool:
    """Whether this frame runs, directly or not, because a module is imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


def _is_command_line() -> bool:
    """Whether this process is `minifuse`, or `python -m minifuse`: `-m` is the first argument until its module runs."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":
        return "minifuse" in sys.orig_argv[1:] and sys.orig_argv[sys.orig_argv.index("minifuse") - 1] == "-m"
    return os.path.splitext(os.path.basename(program))[0] == "minifuse"


class _CommandLine:
    """The handler of SIGINT."""

    def __init__(self) -> None:
        self.came_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if self.came_s is not None:
            if now - self.came_s < ONE_KEYSTROKE_S:
                return
            self._end(TWICE)
        self.came_s = now
        if importing(frame):
            self._end(NOTHING_SHOWN)
        raise KeyboardInterrupt

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """An exception was raised where Python drops it, as in a finalizer."""
        if isinstance(what.exc_value, KeyboardInterrupt):
            self._end(NOTHING_SHOWN)
        sys.__unraisablehook__(what)

    def _end(self, message: str) -> NoReturn:
        try:
            os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}error: {message}\n".encode())
        finally:
            os._exit(INTERRUPTED)
