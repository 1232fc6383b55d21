"""Starts the ranks of a tensor parallel run on this machine (Flover, V-D)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minifuse.core.errors import MachineError, UsageError
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import RankLost
from minifuse.parallel.config import shard_config
from minifuse.parallel.followers import Followers
from minifuse.parallel.order import Setup
from minifuse.parallel.rank import HOST, Rank, join
from minifuse.parallel.runner import ParallelRunner


def launch(model: Transformer, setup: Setup) -> ParallelRunner:
    """Start all other ranks, and return a runner that computes plans on all ranks.

        with launch(model, Setup(source, attention.backend(), memory.capacity, size=2)) as run:
            executor = RealExecutor(run, clock)

    Close it after use. A process can have one such run at a time. On CPU the ranks share the threads that torch would
    use here.

    Args:
        model: the whole model, on rank 0. Every other rank loads it again from its source.

    Raises:
        UsageError: the model cannot be split into so many parts, or ranks run here already.
        MachineError: there are not enough devices, or a rank failed.
    """
    size = setup.size
    shard_config(model.config, size)
    if model.device.type == "cuda" and size > torch.cuda.device_count():
        raise MachineError(
            f"A tensor parallel size of {size} was given, and this machine has {torch.cuda.device_count()} GPUs: "
            "choose a smaller one."
        )
    if dist.is_initialized():
        raise UsageError("torch.distributed is in use in this process already: close the other parallel run first.")
    store = dist.TCPStore(HOST, port=0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    setup = setup._replace(
        port=store.port,
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device.type,
        threads=max(1, torch.get_num_threads() // size),
    )
    followers = Followers([setup._replace(rank=rank) for rank in range(1, size)])
    try:
        followers.await_ready()  # loading weights may take longer than the timeout of a collective
        followers.send(None)
        join(setup, store)
        rank = Rank(setup, model)
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
