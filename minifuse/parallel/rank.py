"""One rank of a tensor parallel run: shard, KV, a communicator and runner per worker."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import PlanTransfers
from minifuse.model.linear import pack
from minifuse.parallel.communicator import Communicator, rank_lost_if_unreachable
from minifuse.parallel.order import Setup
from minifuse.parallel.shard import load_shard, with_communicator

PATIENCE = timedelta(minutes=30), timedelta(days=1)  # timeouts of collectives with gloo, for rank 0 and for followers


def join(setup: Setup, store: dist.Store | None = None) -> None:  # type: ignore[name-defined]
    """Join the other ranks in a process group; every rank must call this.

    The group uses gloo on CPU and NCCL on CUDA.

    Args:
        store: where the ranks find each other; None: connect to the store at the address in `setup`.

    Raises:
        RankLost: the other ranks do not join in time.
    """
    timeout = _timeout(setup)
    backend = "nccl" if setup.device == "cuda" else "gloo"
    with rank_lost_if_unreachable():
        store = store or dist.TCPStore(setup.host, setup.port, timeout=timeout)  # type: ignore[attr-defined]
        hook = sys.excepthook
        dist.init_process_group(backend, timeout=timeout, world_size=setup.size, rank=setup.rank, store=store)
        _be_patient(setup, dist.group.WORLD)
        sys.excepthook = hook  # torch's hook puts [rank0] before every line of a traceback, even after the group


class Rank:
    """One rank's shard of the model. All workers share its weights and its KV."""

    def __init__(self, setup: Setup, runner: type[TorchRunner] = TorchRunner) -> None:
        """Load this rank's part of the model. The ranks must `join` before `open_worker`."""
        device = torch.device("cuda", setup.local_rank) if setup.device == "cuda" else torch.device("cpu")
        self.model = load_shard(setup)
        pack(self.model)
        sizes = setup.capacity, self.model.dtype, device, setup.host_capacity, setup.shared_capacity
        self.cache = TieredStorage(self.model.config, *sizes, setup.host_dtype)
        self.transfers = PlanTransfers(self.cache, setup.attention.operators)
        self.setup = setup
        self._runner = runner

    def open_worker(self) -> tuple[Communicator, MovingRunner]:
        """Open one more worker; all ranks must do so together, in the same order.

        Returns:
            The worker's communicator and its runner.
        """
        with rank_lost_if_unreachable():
            communicator = Communicator(dist.new_group(timeout=_timeout(self.setup)))
        _be_patient(self.setup, communicator.group)
        model = with_communicator(self.model, communicator)
        return communicator, MovingRunner(self._runner(model, self.cache, self.setup.attention), self.transfers)


def _timeout(setup: Setup) -> timedelta:
    """Return how long this rank waits for the others to join.

    On CPU a follower waits as long as rank 0 lives, because rank 0 may have been suspended.
    """
    return PATIENCE[1] if setup.rank and setup.device == "cpu" else timedelta(seconds=setup.timeout_s)


def _be_patient(setup: Setup, group: dist.ProcessGroup | None) -> None:
    """Set a long timeout for a group's collectives on this rank, except with NCCL.

    Another rank may compute for long, or be suspended. A rank that ends closes its connections, which ends the wait; a
    rank that was stopped is killed (`minifuse.parallel.watch`). NCCL does not notice when another rank ends, so it
    keeps its own timeout.
    """
    if group is not None and setup.device == "cpu":
        group.set_timeout(PATIENCE[bool(setup.rank)])
