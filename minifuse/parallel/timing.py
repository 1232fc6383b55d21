"""Times collectives between processes of this machine."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, start_processes

from minifuse.core.errors import MachineError
from minifuse.parallel.communicator import Communicator

SIZES = tuple(4**n for n in range(5, 12))  # bytes that each rank has: 1 KiB to 4 MiB
ROUNDS = 11
PATIENCE = timedelta(minutes=1)  # with ranks that do not answer


def time_collectives(ranks: int, device: str, sizes: Sequence[int] = SIZES) -> dict[str, list[float]]:
    """Return the median seconds of "sum" and "gather" among so many processes, for each size.

    Args:
        sizes: bytes that each rank has.

    Raises:
        MachineError: the processes cannot exchange messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _ignoring_ctrl_c():  # the new processes inherit this: Ctrl-C is for this one
                started = start_processes(
                    _rank, (ranks, device, sizes, folder), ranks, join=False, daemon=True, start_method="spawn"
                )
            assert started is not None
            try:
                while not started.join():
                    pass
            finally:
                for process in started.processes:
                    process.kill()
                    process.join()
        except (ProcessException, OSError) as error:
            why = str(error).strip().splitlines()[-1]
            raise MachineError(
                f"{ranks} processes of this machine cannot exchange messages ({why}): fix the cause, or measure "
                "without --ranks."
            ) from error
        found: dict[str, list[float]] = json.loads((Path(folder) / "seconds").read_text())
        return found


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _rank(rank: int, ranks: int, device: str, sizes: Sequence[int], folder: str) -> None:
    """Time the collectives as one rank; rank 0 writes the seconds to a file."""
    torch.set_num_threads(1)
    where, backend = torch.device(device), "gloo"
    if where.type == "cuda":
        where, backend = torch.device(device, rank), "nccl"
        torch.cuda.set_device(where)
    store = f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, timeout=PATIENCE, rank=rank, world_size=ranks)
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
        x.fill_(1.0)
        dist.barrier()
        if x.is_cuda:
            torch.cuda.synchronize()
        begins = time.perf_counter()
        call(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begins)
    return median(seconds[1:])
