"""Ranks that torchrun has started, on one machine or several: each runs the same command.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr HOST --master-port 29500 -m minifuse run ...

Rank 0 carries the command out. The others find its address in torchrun's store, and wait for orders.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, NoReturn

from minifuse.core.errors import MachineError

if TYPE_CHECKING:
    from minifuse.parallel.order import Setup

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ORDERS = "minifuse/orders"  # where rank 0 sends its orders from; "" when it ends without any
PATIENCE = timedelta(days=1)  # of a follower, which ends with torchrun


@dataclass(frozen=True)
class Torchrun:
    """One process of torchrun's, as its environment has it."""

    rank: int
    size: int
    local_rank: int
    num_local: int  # ranks on this machine
    host: str  # of rank 0
    port: int

    def store(self) -> Any:
        """Return the store that all ranks share: torchrun's own, or one that rank 0 hosts."""
        return _store(self)

    def connections(self, setup: Setup) -> list[Connection]:
        """Wait for the other ranks, and return their connections by rank, each with its setup sent.

        Raises:
            MachineError: one does not come in time.
        """
        key = secrets.token_bytes(32)
        with Listener((self.host, 0), authkey=key) as listener:
            _accept_for(listener, setup.timeout_s)
            port = listener.address[1]
            self.store().set(ORDERS, json.dumps([self.host, port, key.hex()]))
            found: dict[int, Connection] = {}
            try:
                while len(found) < self.size - 1:
                    connection = listener.accept()
                    found[connection.recv()] = connection
            except TimeoutError:
                raise MachineError(
                    f"{len(found) + 1} of {self.size} ranks of torchrun have come within {setup.timeout_s:g} s: start "
                    "the same command on every machine."
                ) from None
        for rank, connection in found.items():
            connection.send(setup._replace(rank=rank))
        return [found[rank] for rank in sorted(found)]

    def dismiss(self) -> None:
        """Let the other ranks end: this command has no orders for them."""
        if not self.store().check([ORDERS]):
            self.store().set(ORDERS, "")

    def follow(self) -> NoReturn:
        """Carry out rank 0's orders until it ends, and end the process."""
        store = self.store()
        store.wait([ORDERS], PATIENCE)
        address = store.get(ORDERS).decode()
        if address:
            from minifuse.parallel.follower import follow

            host, port, key = json.loads(address)
            connection: Any = Client((host, port), authkey=bytes.fromhex(key))
            connection.send(self.rank)
            follow(connection, store, self.local_rank)
        os._exit(0)


@cache
def torchrun() -> Torchrun | None:
    """Return this process's place among torchrun's; None if torchrun has not started it."""
    values = [os.environ.get(name, "") for name in NAMES]
    if not all(values):
        return None
    rank, size, local_rank, num_local, host, port = values
    return Torchrun(int(rank), int(size), int(local_rank), int(num_local), host, int(port))


def num_ranks() -> int:
    """Return how many ranks torchrun has started; 1 without it."""
    return 1 if (started := torchrun()) is None else started.size


@cache
def _store(one: Torchrun) -> Any:
    import torch.distributed as dist

    hosts = one.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = dist.TCPStore(one.host, one.port, is_master=hosts, wait_for_workers=False)  # type: ignore[attr-defined]
    return dist.PrefixStore("minifuse", store)  # type: ignore[attr-defined]


def _accept_for(listener: Listener, seconds: float) -> None:
    """Let `accept` raise `TimeoutError` after so many seconds."""
    opened: socket.socket = listener._listener._socket  # type: ignore[attr-defined]
    opened.settimeout(seconds)
