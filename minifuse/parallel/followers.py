"""Starts and controls all ranks except rank 0."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Self

from minifuse.core.errors import MachineError
from minifuse.parallel.order import Setup
from minifuse.parallel.watch import Watch

EXIT_TIMEOUT_S = 5.0  # given to a follower to end, or to report why it has failed


class Followers:
    """Controls ranks 1 and up, each with its own connection.

    A follower ends when its connection is closed, by rank 0 or because rank 0 has ended. It sends two kinds of message:
    that it is ready, and why it has failed.

    Args:
        connections: one connection to each follower, in rank order.
        processes: the followers that rank 0 started on this machine; `close` ends them. A process that
            stays stopped (SIGSTOP) is killed.
    """

    def __init__(self, connections: list[Connection], processes: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        self.processes = processes
        self._connections = connections
        self._watch = Watch(processes)
        # Also on garbage collection:
        self.close = weakref.finalize(self, _stop, connections, processes, self._watch)
        if processes:
            self._watch.start()

    @classmethod
    def start(cls, setups: Iterable[Setup]) -> Self:
        """Start a process for each setup; it begins to load its weights (see `await_ready`)."""
        connections: list[Connection] = []
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for setup in setups:
                ours, theirs = Pipe()
                connections.append(ours)
                with theirs:
                    processes.append(_start(theirs))
                ours.send(setup)
        except BaseException:
            _stop(connections, processes, None)
            raise
        return cls(connections, processes)

    def await_ready(self) -> None:
        """Wait for one more ready message from each follower.

        Raises:
            MachineError: a follower failed.
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
        """Return the error that a follower reports within `EXIT_TIMEOUT_S`, or None."""
        for connection in wait(self._connections, EXIT_TIMEOUT_S):
            assert isinstance(connection, Connection)
            if failure := self._receive(connection):
                return failure
        return None

    def _receive(self, connection: Connection) -> MachineError | None:
        """Read one message of a follower; return the follower's error, or None if ready."""
        index = self._connections.index(connection)
        try:
            why = connection.recv()
            if why is None:
                return None
        except (EOFError, OSError):
            why = self._why_ended(index)
        process = f", process {self.processes[index].pid}," if self.processes else ""
        rank, size = index + 1, len(self._connections) + 1
        return MachineError(f"Rank {rank} of {size}{process} failed ({why}): fix the cause and start again.")

    def _why_ended(self, index: int) -> str:
        """Say why a follower has closed its connection."""
        if not self.processes:
            return "its connection was closed"
        if index in self._watch.ended:
            return "it was stopped, by SIGSTOP or a debugger, and did not go on"
        code = self.processes[index].wait(EXIT_TIMEOUT_S)
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _start(connection: Connection) -> subprocess.Popen[bytes]:
    """Start a follower at the other end of `connection`.

    The follower has its own session, so that Ctrl-C reaches only rank 0. It has this process's module path, because the
    attention stage may come from a plugin.
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


def _stop(connections: Sequence[Connection], processes: Sequence[subprocess.Popen[bytes]], watch: Watch | None) -> None:
    """Close all connections, so that followers end; after a timeout, kill those started here."""
    if watch is not None:
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
