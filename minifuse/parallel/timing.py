"""Times collectives between processes of this machine."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, start_processes

from minifuse.core.errors import MachineError
from minifuse.parallel.communicator import Communicator

SIZES = tuple(4**n for n in range(5, 13))  # bytes that each rank has: 1 KiB to 16 MiB
ROUNDS = 11


def time_collectives(ranks: int, device: str, sizes: Sequence[int] = SIZES) -> dict[str, list[float]]:
    """Return the median seconds of "sum" and "gather" among so many processes, for each size.

    Args:
        sizes: bytes that each rank has.

    Raises:
        MachineError: the processes cannot exchange messages.
    """
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the new processes inherit this: Ctrl-C is ours
    try:
        with tempfile.TemporaryDirectory() as folder:
            started = start_processes(_rank, (ranks, device, sizes, folder), ranks, join=False, start_method="spawn")
            assert started is not None
            signal.signal(signal.SIGINT, interrupted)
            try:
                while not started.join():
                    pass
            except ProcessException as error:
                why = str(error).strip().splitlines()[-1]
                raise MachineError(
                    f"{ranks} processes of this machine cannot exchange messages ({why}): fix the cause, or measure "
                    "without --ranks."
                ) from error
            finally:
                for process in started.processes:
                    process.kill()
            found: dict[str, list[float]] = json.loads((Path(folder) / "seconds").read_text())
            return found
    finally:
        signal.signal(signal.SIGINT, interrupted)


def _rank(rank: int, ranks: int, device: str, sizes: Sequence[int], folder: str) -> None:
    """Time the collectives as one rank; rank 0 writes the seconds to a file."""
    torch.set_num_threads(1)
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    assert dist.group.WORLD is not None
    communicator = Communicator(dist.group.WORLD)
    calls: dict[str, Callable[[Tensor], Tensor]] = {"sum": communicator.all_reduce, "gather": communicator.all_gather}
    found = {
        name: [_seconds(call, torch.ones(1, size // 4, device=where)) for size in sizes] for name, call in calls.items()
    }
    if not rank:
        (Path(folder) / "seconds").write_text(json.dumps(found))
    dist.destroy_process_group()


def _seconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the median seconds of a collective, after one that does not count."""
    seconds = []
    for _ in range(1 + ROUNDS):
        dist.barrier()
        x.fill_(1.0)
        begins = time.perf_counter()
        call(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        seconds.append(time.perf_counter() - begins)
    return median(seconds[1:])
