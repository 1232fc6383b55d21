"""Decides what Ctrl-C does to the process of the command line, at every moment.

| Ctrl-C comes | the process |
|---|---|
| while a module is imported, such as this package | ends at once: some imports, as torch's, swallow exceptions |
| while it works | raises `KeyboardInterrupt`; a run delays it where it must not be cut (`serve/interrupt.py`) |
| for the second time | ends at once, so that nothing hangs or is torn down while threads run |
| twice within a second | counts them as one: the key may have been hit twice by accident |
| after the last one has had its effect, such as ending an answer of a chat | counts it as a first one (`dealt_with`) |
| when the work is done | ends at once with the exit code of the work |

SIGTERM and SIGHUP (the terminal is closed) do the same, except that they always end the process. The exit code is 128
plus the number of the signal. A program that imports minifuse keeps its own handlers. This module imports nothing
that takes long.
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
    from typing import Final, NoReturn

    Handler = Callable[[int, FrameType | None], object]


INTERRUPTED = 130  # the exit code that shells give to what Ctrl-C has ended
NOTHING_SHOWN = "Interrupted before there was anything to show: run it again."
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
ONE_KEYSTROKE_S = 1.0  # a second Ctrl-C within this time does not count
TWICE = "Interrupted twice: ended at once, without what was still to be written."
SHOW_CURSOR = "\x1b[?25h"  # a live picture hides it


def install() -> None:
    """Handle the signals of a command line's process, except ignored ones (`nohup`)."""
    if _is_command_line():
        for number in SIGNALS:
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                signal.signal(number, HANDLER)
        sys.unraisablehook = HANDLER.unraisable


def finish(code: int) -> None:
    """Fix the exit code: the work is done, and no signal changes it any more."""
    for number in SIGNALS:
        if signal.getsignal(number) is HANDLER:
            signal.signal(number, lambda number, frame: os._exit(code))  # should a thread not end
            atexit.register(signal.signal, number, signal.SIG_IGN)  # the interpreter gives up handlers as it ends


def exit_code(code: int) -> int:
    """Return 128 plus the number of the signal that ended the work, or else `code`."""
    cut_off = code == INTERRUPTED or (code and HANDLER.ends)  # a terminal that is gone also fails what writes to it
    return 128 + HANDLER.number if cut_off else code


def dealt_with() -> None:
    """Count the next Ctrl-C as a first one: this one has had its effect.

    Raises:
        KeyboardInterrupt: another signal has come, and the process is to end.
    """
    if HANDLER.ends:
        raise KeyboardInterrupt
    HANDLER.came_s = None


def importing(frame: FrameType | None) -> bool:
    """Tell whether this frame runs, directly or indirectly, because of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


def _is_command_line() -> bool:
    """Tell whether this process is `minifuse` or `python -m minifuse` (`sys.argv[0]` may still be `-m`)."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":
        return "minifuse" in sys.orig_argv[1:] and sys.orig_argv[sys.orig_argv.index("minifuse") - 1] == "-m"
    return os.path.splitext(os.path.basename(program))[0] == "minifuse"


class _CommandLine:
    """Handles SIGINT, SIGTERM and SIGHUP; its one instance is `HANDLER`."""

    def __init__(self) -> None:
        self.came_s: float | None = None
        self.number: int = signal.SIGINT  # of the signal that came; SIGINT gives way to the others

    @property
    def ends(self) -> bool:
        """Tell whether a signal has come that ends the process."""
        return self.number != signal.SIGINT

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number if self.ends else number
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
        """Handle an exception raised where Python drops exceptions, as in a finalizer."""
        if isinstance(what.exc_value, KeyboardInterrupt):
            self._end(NOTHING_SHOWN)
        sys.__unraisablehook__(what)

    def _end(self, message: str) -> NoReturn:
        try:
            os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}error: {message}\n".encode())
        finally:
            os._exit(128 + self.number)


HANDLER: Final = _CommandLine()
