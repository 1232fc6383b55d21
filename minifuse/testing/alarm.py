"""An end to what hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minifuse.fault import Hung

__all__ = ["alarm"]

AGAIN_S = 1.0


@contextmanager
def alarm(patience_s: float) -> Iterator[None]:
    """Raise `Hung` in a block that has not ended after so many seconds, wherever it is, and again until it ends.

    Where the system has no such alarm, in other threads than the main one, and inside another such block, it does
    nothing. A block that is in the middle of a call into C is interrupted when that call returns.
    """
    ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not ours or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hung(patience_s)

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, patience_s, AGAIN_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
