"""Starts the ranks of a tensor parallel run, or uses those of torchrun (Flover, V-D)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minifuse.core.errors import MachineError, UsageError
from minifuse.parallel.communicator import RankLost
from minifuse.parallel.config import shard_config
from minifuse.parallel.followers import Followers
from minifuse.parallel.order import Setup
from minifuse.parallel.rank import Rank, join
from minifuse.parallel.runner import ParallelRunner
from minifuse.parallel.torchrun import torchrun

LOOPBACK = "127.0.0.1"


def launch(setup: Setup) -> ParallelRunner:
    """Start all other ranks, and return a runner that computes plans on all ranks.

        with launch(Setup(source, attention.backend(), memory.capacity, size=2, dtype="float32", device="cpu")) as run:
            executor = RealExecutor(run, clock)

    Close the runner after use. A process can have one such run at a time. On CPU the ranks of this machine divide
    torch's threads among themselves. Under torchrun the other ranks are already running, on any machine, and wait for
    orders. Every rank, this one included, loads its own part of the model.

    Raises:
        UsageError: the model cannot be split into so many parts, this process has a parallel run already, or torchrun
            has started a different number of ranks.
        MachineError: there are not enough devices, or a rank failed.
    """
    shard_config(setup.source.config, setup.size)
    if dist.is_initialized():
        raise UsageError("torch.distributed is in use in this process already: close the other parallel run first.")
    started = torchrun()
    if started is not None and started.size != setup.size:
        raise UsageError(
            f"A tensor parallel size of {setup.size} was given, and torchrun has started {started.size} ranks: give "
            "that, or leave it out."
        )
    num_here = setup.size if started is None else started.num_local
    if setup.device == "cuda" and num_here > torch.cuda.device_count():
        raise MachineError(
            f"{num_here} ranks are to run on this machine, which has {torch.cuda.device_count()} GPUs: choose fewer."
        )
    setup = setup._replace(threads=max(1, torch.get_num_threads() // num_here))
    if started is None:
        store = dist.TCPStore(LOOPBACK, port=0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        setup = setup._replace(port=store.port)
        followers = Followers.start([setup._replace(rank=rank) for rank in range(1, setup.size)])
    else:
        store, connections = started.begin(setup)
        followers = Followers(connections)
    try:
        rank = Rank(setup)  # loads while the others load: loading may take longer than the timeout of a collective
        followers.await_ready()
        followers.send(None)
        join(setup, store)
        followers.await_ready()
    except BaseException as error:
        failure = followers.failure() if isinstance(error, RankLost | OSError) else None
        followers.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        if failure is not None:
            raise failure from error
        raise
    return ParallelRunner(rank, followers)
