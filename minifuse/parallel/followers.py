"""The processes of all ranks but rank 0, as rank 0 controls them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection, Pipe, wait

from minifuse.core.errors import MachineError
from minifuse.parallel.order import Setup
from minifuse.parallel.watch import Watch

EXIT_TIMEOUT_S = 5.0  # for a follower to end, or to report why it has failed


class Followers:
    """Starts and controls ranks 1 and up, each a process with its own connection.

    A follower ends when its connection does: because rank 0 closes it, or because rank 0 has ended in whatever way. It
    sends two kinds of message: that it is ready, and why it has failed. One that has been stopped is ended.
    """

    def __init__(self, setups: Iterable[Setup]) -> None:
        """Start a process for each of `setups`. They begin to load their weights: see `await_ready`."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._watch = Watch(self.processes)
        # Also on garbage collection:
        self.close = weakref.finalize(self, _stop, self._connections, self.processes, self._watch)
        for setup in setups:
            ours, theirs = Pipe()
            self._connections.append(ours)
            with theirs:
                self.processes.append(_start(theirs))
            ours.send(setup)
        self._watch.start()

    def await_ready(self) -> None:
        """Wait for one more ready message from each follower.

        Raises:
            MachineError: one of them failed.
        """
        pending = list(self._connections)
        while pending:
            for connection in wait(pending):
                assert isinstance(connection, Connection)
                if failure := self._receive(connection):
                    raise failure
                pending.remove(connection)

    def send(self, message: object) -> None:
        """Send one message to all followers."""
        data = pickle.dumps(message)
        for connection in self._connections:
            connection.send_bytes(data)

    def failure(self) -> MachineError | None:
        """Return the first error that a follower reports in time: why ranks lost each other."""
        for connection in wait(self._connections, EXIT_TIMEOUT_S):
            assert isinstance(connection, Connection)
            if failure := self._receive(connection):
                return failure
        return None

    def _receive(self, connection: Connection) -> MachineError | None:
        """Read one message of a follower: None if it is ready, otherwise its error."""
        index = self._connections.index(connection)
        try:
            why = connection.recv()
            if why is None:
                return None
        except (EOFError, OSError):
            code = self.processes[index].wait(EXIT_TIMEOUT_S)
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
            if index in self._watch.ended:
                why = "it was stopped, by SIGSTOP or a debugger, and did not go on"
        rank, size, pid = index + 1, len(self.processes) + 1, self.processes[index].pid
        return MachineError(f"Rank {rank} of {size}, process {pid}, failed ({why}): fix the cause and start again.")


def _start(connection: Connection) -> subprocess.Popen[bytes]:
    """Start a follower at the other end of `connection`.

    It is in a process group of its own, so that Ctrl-C reaches rank 0 alone, and has this process's module path, since
    the attention stage may come from a plugin.
    """
    number = connection.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", "minifuse.parallel.follower", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # rank 0 prints the answers there
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(number,),
        start_new_session=True,
    )


def _stop(connections: list[Connection], processes: list[subprocess.Popen[bytes]], watch: Watch) -> None:
    """End all processes: by closing their connections, and after a timeout by force."""
    watch.close()
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
