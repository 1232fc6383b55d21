"""Connects the ranks that torchrun has started; each rank runs the same command.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr HOST --master-port 29500 -m minifuse run ...

Rank 0 carries out the command. The other ranks find rank 0's address in torchrun's store, and take part in its runs.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from minifuse.core.errors import MachineError

if TYPE_CHECKING:
    from minifuse.parallel.order import Setup

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
POLL_S = 0.1  # the longest wait for one connection, before a check whether to stop
PATIENCE = timedelta(days=1)  # of a follower, which ends when torchrun ends


@dataclass(frozen=True)
class Torchrun:
    """A process that torchrun has started, as its environment describes it."""

    rank: int
    size: int
    local_rank: int
    num_local: int  # ranks on this machine
    host: str  # of rank 0
    port: int

    def begin(self, setup: Setup) -> tuple[Any, list[Connection]]:
        """Begin a run; return the store where ranks join, and their connections by rank.

        Rank 0 calls this. It sends every other rank its setup before it returns.

        Raises:
            MachineError: a rank does not connect in time.
        """
        number, key = self._next(), secrets.token_bytes(32)
        deadline, come = time.monotonic() + setup.timeout_s, SimpleQueue[tuple[int, Connection]]()
        with Listener(("", 0)) as listener, _accepting(listener, key, come):
            self._store().set(_orders(number), json.dumps([self.host, listener.address[1], key.hex()]))
            found: dict[int, Connection] = {}
            try:
                while len(found) < self.size - 1:
                    rank, connection = come.get(timeout=max(0.0, deadline - time.monotonic()))
                    found[rank] = connection
            except Empty:
                raise MachineError(
                    f"{len(found) + 1} of {self.size} ranks of torchrun have come within {setup.timeout_s:g} s: start "
                    "the same command on every machine."
                ) from None
        for rank, connection in found.items():
            connection.send(setup._replace(rank=rank))
        return self._of_run(number), [found[rank] for rank in sorted(found)]

    def dismiss(self) -> None:
        """Let the other ranks end: this command has no more runs for them."""
        self._store().set(_orders(self._next()), "")

    def follow(self) -> NoReturn:
        """Take part in every run of rank 0, each in a new process; then exit.

        torchrun sends Ctrl-C and SIGTERM to all ranks; only rank 0 handles them.
        """
        for number_of_signal in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number_of_signal, signal.SIG_IGN)
        number, code = 0, 0
        while not code:
            number += 1
            self._store().wait([_orders(number)], PATIENCE)
            address = self._store().get(_orders(number)).decode()
            if not address:
                break
            if not (child := os.fork()):
                self._take_part(number, *json.loads(address))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code)

    def _take_part(self, number: int, host: str, port: int, key: str) -> NoReturn:
        from minifuse.parallel.follower import follow

        connection: Any = Client((host, port), authkey=bytes.fromhex(key))
        connection.send(self.rank)
        follow(connection, self._of_run(number), self.local_rank)
        os._exit(0)

    def _next(self) -> int:
        """Return the number of rank 0's next run, counted from 1."""
        return int(self._store().add(f"{_prefix()}/runs", 1))

    def _store(self) -> Any:
        """Connect to the store of all ranks, which torchrun or rank 0 hosts."""
        return _connected(self, os.getpid())

    def _of_run(self, number: int) -> Any:
        import torch.distributed as dist

        return dist.PrefixStore(f"{_prefix()}/{number}", self._store())  # type: ignore[attr-defined]


def _prefix() -> str:
    """Return the prefix of this attempt's keys in the store.

    torchrun's store outlives an attempt that has failed.
    """
    return f"minifuse/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _orders(number: int) -> str:
    """Return the store's key for a run.

    The key's value is the address of rank 0, or "" when there are no more runs.
    """
    return f"{_prefix()}/orders/{number}"


@cache
def torchrun() -> Torchrun | None:
    """Describe this process as torchrun started it; return None without torchrun."""
    values = [os.environ.get(name, "") for name in NAMES]
    if not all(values):
        return None
    rank, size, local_rank, num_local, host, port = values
    return Torchrun(int(rank), int(size), int(local_rank), int(num_local), host, int(port))


def num_ranks() -> int:
    """Return how many ranks torchrun has started; 1 without it."""
    return 1 if (started := torchrun()) is None else started.size


@cache
def _connected(one: Torchrun, process: int) -> Any:
    """Connect a process to the store; a forked process needs a connection of its own."""
    import torch.distributed as dist

    hosts = one.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return dist.TCPStore(one.host, one.port, is_master=hosts, wait_for_workers=False)  # type: ignore[attr-defined]


@contextmanager
def _accepting(listener: Listener, key: bytes, come: SimpleQueue[tuple[int, Connection]]) -> Iterator[None]:
    """Accept connections until the block ends.

    Each connection is authenticated in its own thread, so that a silent stranger delays no rank.
    """
    opened: socket.socket = listener._listener._socket  # type: ignore[attr-defined]
    opened.settimeout(POLL_S)
    over = threading.Event()

    def accept() -> None:
        while not over.is_set():
            with suppress(OSError):  # no worker has connected
                connection = listener.accept()
                threading.Thread(target=_greet, args=(connection, key, come), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield
    finally:
        over.set()
        accepting.join()


def _greet(connection: Connection, key: bytes, come: SimpleQueue[tuple[int, Connection]]) -> None:
    """Put a peer's rank and connection into `come` if the peer knows the key."""
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        come.put((connection.recv(), connection))
    except (AuthenticationError, EOFError, OSError):
        connection.close()
