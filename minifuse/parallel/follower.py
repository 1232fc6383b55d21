"""A rank that follows rank 0: `python -m minifuse.parallel.follower CONNECTION`.

`launch` or torchrun starts it. It has no clock, no policy and no memory records. It computes the plans that rank 0
sends, in the order in which they are sent, and samples nothing.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from minifuse.attention.batch import AttentionBackend
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.parallel.communicator import RankLost
from minifuse.parallel.order import Known, Order, Setup
from minifuse.parallel.rank import Rank, join


class FollowingRunner(TorchRunner):
    """Computes a plan up to the gathered logits: only rank 0 samples."""

    def compute(self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend) -> Ran:
        self.logits(plan, sequences, attention)
        return Ran({})


def main() -> None:
    """Carry out orders; the program's argument is the descriptor of their connection."""
    follow(Connection(int(sys.argv[1])))


def follow(connection: Connection, store: dist.Store | None = None, local_rank: int | None = None) -> None:  # type: ignore[name-defined]
    """Carry out orders until rank 0 ends; then end this process.

    Args:
        store: where the ranks join; None: the store at the address in the `Setup`.
        local_rank: this rank's number on its machine; None: the same as its rank.
    """
    try:
        _receive_orders(connection, store, local_rank)
    except (EOFError, ConnectionError):
        os._exit(0)  # rank 0 has closed or has ended; do not wait for threads that may still wait for it
    except BaseException as error:
        _fail(connection, error)


def _receive_orders(connection: Connection, store: dist.Store | None, local_rank: int | None) -> None:  # type: ignore[name-defined]
    setup: Setup = connection.recv()
    setup = setup._replace(local_rank=setup.rank if local_rank is None else local_rank)
    torch.set_num_threads(setup.threads)
    _use_device(setup)
    rank = _prepare(connection, setup, store)
    # By worker: its thread, its runner, and what is known of its sequences.
    workers: dict[int, tuple[ThreadPoolExecutor, MovingRunner, Known]] = {}
    behind: dict[int, Future[Ran]] = {}  # step -> a plan that only moves KV, until it has completed on every rank
    while True:
        order: Order = connection.recv()
        for step in order.landed:  # completed on rank 0, whose next plans may overwrite what these steps copy here
            behind.pop(step).result()
        if not order.plan.work:
            behind[order.plan.step] = rank.transfers.behind(order.plan)
            continue
        worker = order.plan.worker
        if worker not in workers:
            connection.send(None)  # ready to open it
            _, run = rank.open_worker()  # rank 0 does the same after sending the worker's first order
            workers[worker] = (ThreadPoolExecutor(1), run, Known())
        thread, run, known = workers[worker]
        thread.submit(_compute, connection, setup, order, run, known)


def _prepare(connection: Connection, setup: Setup, store: dist.Store | None) -> Rank:  # type: ignore[name-defined]
    """Load this rank's part of the model, and join the other ranks."""
    rank = Rank(setup, FollowingRunner)
    connection.send(None)  # ready to join
    connection.recv()  # all ranks are ready
    join(setup, store)
    connection.send(None)
    return rank


def _compute(connection: Connection, setup: Setup, order: Order, run: MovingRunner, known: Known) -> None:
    """Carry out one order, in its worker's thread."""
    try:
        _use_device(setup)
        run(known.plan(order), known.sequences)
    except RankLost:
        return  # the lost rank reports why, and rank 0 notices that this worker has stopped
    except BaseException as error:
        _fail(connection, error)


def _use_device(setup: Setup) -> None:
    """Set the device of this thread: in CUDA, every thread has its own current device."""
    if setup.device == "cuda":
        torch.cuda.set_device(setup.local_rank)


def _fail(connection: Connection, error: BaseException) -> None:
    """Report the error and end at once, so that other ranks' collectives fail."""
    try:
        connection.send(f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip("."))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
