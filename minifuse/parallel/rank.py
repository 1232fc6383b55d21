"""One rank of a tensor parallel run: its shard, its part of the KV, and a communicator and a runner for each worker."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from minifuse.attention.batch import AttentionBackend
from minifuse.execute.texts import TorchRunner
from minifuse.execute.transfers import PlanTransfers
from minifuse.memory.storage import KVStorage
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import Communicator, rank_lost_if_unreachable
from minifuse.parallel.order import Setup
from minifuse.parallel.shard import shard, with_communicator

__all__ = ["Rank", "join"]

HOST = "127.0.0.1"


def join(setup: Setup, store: dist.Store | None = None) -> None:  # type: ignore[name-defined]
    """Join the other ranks in a process group: gloo's on CPU, NCCL's on CUDA. Every rank must call this.

    Args:
        store: where the ranks find each other; given on the rank that hosts it.

    Raises:
        RankLost: the other ranks do not join in time.
    """
    timeout = timedelta(seconds=setup.timeout_s)
    backend = "nccl" if setup.device == "cuda" else "gloo"
    with rank_lost_if_unreachable():
        store = store or dist.TCPStore(HOST, setup.port, timeout=timeout)  # type: ignore[attr-defined]
        hook = sys.excepthook
        dist.init_process_group(backend, timeout=timeout, world_size=setup.size, rank=setup.rank, store=store)
        sys.excepthook = hook  # torch's puts [rank0] before every line of a traceback, even after the group has gone


class Rank:
    """One rank's shard of the model. All workers share its weights and its KV."""

    def __init__(self, setup: Setup, model: Transformer, runner: type[TorchRunner] = TorchRunner) -> None:
        """Take this rank's part of the whole `model`. The ranks must have joined."""
        device = torch.device("cuda", setup.rank) if setup.device == "cuda" else torch.device("cpu")
        world = dist.group.WORLD
        assert world is not None
        self.model = shard(model, setup.rank, setup.size, Communicator(world)).to(device)
        self.model.pack()
        self.cache = KVStorage(self.model.config, setup.capacity, self.model.dtype, device, setup.host_capacity)
        self.attention: AttentionBackend = setup.attention
        self.transfers = PlanTransfers(self.cache, self.attention.operators)
        self._runner = runner
        self._timeout = timedelta(seconds=setup.timeout_s)

    def open_worker(self) -> tuple[Communicator, TorchRunner]:
        """The communicator and the runner of one more worker. All ranks must do this together, in the same order."""
        with rank_lost_if_unreachable():
            communicator = Communicator(dist.new_group(timeout=self._timeout))
        model = with_communicator(self.model, communicator)
        return communicator, self._runner(model, self.cache, self.attention, self.transfers)
