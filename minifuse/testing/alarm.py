"""Interrupts code that hangs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minifuse.contracts.fault import Hung

AGAIN_S = 1.0
MOST_TIMES = 6  # limit in real time, as a multiple of the patience: other processes may use the processors


@contextmanager
def alarm(patience_s: float) -> Iterator[None]:
    """Raise `Hung` in a block that takes too long, repeatedly until the block ends.

    Args:
        patience_s: the limit in seconds of processor time. In real time, the limit is six times as long, because a
            block that is slow on a busy machine does not hang.

    There is no limit outside the main thread, inside another `alarm` block, or on a system without `setitimer`. A call
    into C is interrupted only when the call returns.
    """
    ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not ours or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        used_s, passed_s = time.process_time() - used_before_s, time.monotonic() - began_s
        if used_s >= patience_s or passed_s >= MOST_TIMES * patience_s:
            raise Hung(patience_s)

    used_before_s, began_s = time.process_time(), time.monotonic()
    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, patience_s, min(AGAIN_S, patience_s))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
