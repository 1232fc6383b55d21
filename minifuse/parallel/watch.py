"""Kills ranks that stay stopped (SIGSTOP); otherwise the other ranks would wait for ever.

The connections of a stopped rank stay open, so no other process notices.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from threading import Event, Thread

PATIENCE_S = 6.0
PAUSE_S = 0.5


class Watch(Thread):
    """Checks processes now and then; kills a process that stays stopped for `PATIENCE_S`.

    A process that only computes for long is not stopped. Checks are counted, not seconds: while rank 0 itself is
    suspended, as by Ctrl-Z, it does not check, so a process that was suspended with rank 0 has time to go on.

    Attributes:
        ended: the processes that were killed, by index.
    """

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        super().__init__(name="minifuse-watch", daemon=True)
        self.ended: set[int] = set()
        self._processes = processes
        self._times_stopped: Counter[int] = Counter()
        self._closed = Event()

    def close(self) -> None:
        self._closed.set()

    def run(self) -> None:
        while not self._closed.wait(PAUSE_S):
            self.look()

    def look(self) -> None:
        """Check every process once."""
        for i, process in enumerate(self._processes):
            self._times_stopped[i] = self._times_stopped[i] + 1 if _is_stopped(process.pid) else 0
            if self._times_stopped[i] * PAUSE_S > PATIENCE_S:
                self.ended.add(i)
                process.kill()


def _is_stopped(pid: int) -> bool:
    """Tell whether a child process is stopped; False if the system does not say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
