"""The other ranks' processes, as rank 0 sees them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Collection
from multiprocessing.connection import Connection, Pipe, wait

from minifuse.errors import MachineError
from minifuse.parallel.order import Setup

__all__ = ["Followers"]

PATIENCE_S = 5.0  # for a follower to end, or to say why it has


class Followers:
    """Ranks 1 and up, each a process with a connection of its own to rank 0.

    A follower ends when its connection does: because it is closed here, or because rank 0 is no more, however that came
    about. It speaks only to say that it is ready, or why it has failed.
    """

    def __init__(self, setups: Collection[Setup]) -> None:
        """Start a process for each of `setups`. They load their weights meanwhile: see `await_ready`."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._setups = list(setups)
        self.close = weakref.finalize(self, _stop, self._connections, self.processes)  # also when this is forgotten
        for setup in setups:
            ours, theirs = Pipe()
            self._connections.append(ours)
            with theirs:
                self.processes.append(_start(theirs))
            ours.send(setup)

    def await_ready(self) -> None:
        """Wait until each of them has said once more that it is ready.

        Raises:
            MachineError: one of them failed.
        """
        pending = list(self._connections)
        while pending:
            for connection in wait(pending):
                assert isinstance(connection, Connection)
                if failure := self._heard(connection):
                    raise failure
                pending.remove(connection)

    def send(self, message: object) -> None:
        """Send the same to all of them."""
        data = pickle.dumps(message)
        for connection in self._connections:
            connection.send_bytes(data)

    def failure(self) -> MachineError | None:
        """Why a follower has failed, if one has: asked when the others have been lost sight of."""
        for connection in wait(self._connections, PATIENCE_S):
            assert isinstance(connection, Connection)
            if failure := self._heard(connection):
                return failure
        return None

    def _heard(self, connection: Connection) -> MachineError | None:
        """What a follower has to say: None, it is ready; otherwise why it is not."""
        index = self._connections.index(connection)
        try:
            why = connection.recv()
            if why is None:
                return None
        except (EOFError, OSError):
            code = self.processes[index].wait(PATIENCE_S)
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        setup = self._setups[index]
        return MachineError(f"Rank {setup.rank} of {setup.size} failed ({why}): mend that and start again.")


def _start(connection: Connection) -> subprocess.Popen[bytes]:
    """A follower that hears and speaks through `connection`.

    It is in a process group of its own, so that Ctrl-C reaches rank 0 alone, and finds modules where this process
    does: the attention stage may be anybody's.
    """
    number = connection.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", "minifuse.parallel.follower", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the answers are printed there
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(number,),
        start_new_session=True,
    )


def _stop(connections: list[Connection], processes: list[subprocess.Popen[bytes]]) -> None:
    """End them: by closing their connections, and if need be by force. None is left."""
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
