"""What every rank has: its shard, its part of the KV, and for each worker a communicator and a runner."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from minifuse.attention.batch import AttentionBackend
from minifuse.execute.texts import TorchRunner
from minifuse.memory.storage import KVStorage
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import Communicator, reaching
from minifuse.parallel.order import Setup
from minifuse.parallel.shard import shard, with_communicator

__all__ = ["Rank", "join"]

HOST = "127.0.0.1"


def join(setup: Setup, store: dist.Store | None = None) -> None:  # type: ignore[name-defined]
    """Meet the other ranks: gloo's on CPU, NCCL's on CUDA. All of them must call this.

    Args:
        store: where they meet, on the rank that keeps it.

    Raises:
        RankLost: the others do not come.
    """
    timeout = timedelta(seconds=setup.timeout_s)
    backend = "nccl" if setup.device == "cuda" else "gloo"
    with reaching():
        store = store or dist.TCPStore(HOST, setup.port, timeout=timeout)  # type: ignore[attr-defined]
        hook = sys.excepthook
        dist.init_process_group(backend, timeout=timeout, world_size=setup.size, rank=setup.rank, store=store)
        sys.excepthook = hook  # torch's puts [rank0] before every line of a traceback, also when the group is long gone


class Rank:
    """One rank's part of the work. The workers share its weights and its KV."""

    def __init__(self, setup: Setup, model: Transformer, runner: type[TorchRunner] = TorchRunner) -> None:
        """Take this rank's part of the whole `model`. The ranks must have joined."""
        device = torch.device("cuda", setup.rank) if setup.device == "cuda" else torch.device("cpu")
        everyone = dist.group.WORLD
        assert everyone is not None
        self.model = shard(model, setup.rank, setup.size, Communicator(everyone)).to(device)
        self.model.pack()
        self.cache = KVStorage(self.model.config, setup.capacity, self.model.dtype, device, setup.host_capacity)
        self.attention: AttentionBackend = setup.attention
        self._runner = runner
        self._timeout = timedelta(seconds=setup.timeout_s)

    def open(self) -> tuple[Communicator, TorchRunner]:
        """Get ready for one more worker. Every rank must do this at the same time, and in the same order."""
        with reaching():
            communicator = Communicator(dist.new_group(timeout=self._timeout))
        return communicator, self._runner(with_communicator(self.model, communicator), self.cache, self.attention)
