"""Starting the ranks of a tensor parallel run on this machine (Flover, V-D)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from minifuse.attention.batch import AttentionBackend
from minifuse.core.errors import MachineError, UsageError
from minifuse.model.text.load import TextSource
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import RankLost
from minifuse.parallel.config import shard_config
from minifuse.parallel.followers import Followers
from minifuse.parallel.order import Setup
from minifuse.parallel.rank import HOST, Rank, join
from minifuse.parallel.runner import ParallelRunner


def launch(
    model: Transformer,
    source: TextSource,
    attention: AttentionBackend,
    capacity: int,
    size: int,
    *,
    host_capacity: int = 0,
    layers_in_turn: int = 1,
    seed: int = 0,
    timeout_s: float = 60.0,
) -> ParallelRunner:
    """Start `size - 1` more ranks, and return a runner that computes plans on all of them; close it after use.

        with launch(model, source, attention.backend(), memory.capacity, size=2) as run:
            executor = RealExecutor(run, clock)

    A process can have one such run at a time. On CPU the ranks share the threads torch would use here.

    Args:
        model: the whole model, on rank 0. Every other rank loads it again from `source`, with `seed` if its weights are
            random.
        attention: the tensor half of the attention stage.
        capacity: KV memory in tokens, of each of which a rank holds the KV of its own heads.
        host_capacity: the capacity of the host tier, likewise.
        layers_in_turn: layers that share the device (`Memory.layers_in_turn`).
        timeout_s: how long rank 0 waits for the others to join, and with NCCL a rank in a collective.

    Raises:
        UsageError: the model cannot be split into `size` parts, or ranks run here already.
        MachineError: there are not enough devices, or a rank failed.
    """
    shard_config(model.config, size)
    if model.device.type == "cuda" and size > torch.cuda.device_count():
        raise MachineError(
            f"A tensor parallel size of {size} was given, and this machine has {torch.cuda.device_count()} GPUs: "
            "choose a smaller one."
        )
    if dist.is_initialized():
        raise UsageError("torch.distributed is in use in this process already: close the other parallel run first.")
    any_port = 0
    store = dist.TCPStore(HOST, any_port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    setup = Setup(
        rank=0,
        size=size,
        port=store.port,
        source=source,
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device.type,
        seed=seed,
        capacity=capacity,
        host_capacity=host_capacity,
        layers_in_turn=layers_in_turn,
        attention=attention,
        threads=max(1, torch.get_num_threads() // size),
        timeout_s=timeout_s,
    )
    followers = Followers([replace(setup, rank=rank) for rank in range(1, size)])
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
    return ParallelRunner(rank, followers, setup.threads)
