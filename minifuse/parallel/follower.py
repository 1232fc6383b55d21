"""A rank that follows rank 0: `python -m minifuse.parallel.follower CONNECTION`, started by `launch`.

It has no clock, no policy and no books. It computes the plans that rank 0 sends, in the order in which they are sent,
and samples nothing.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

import torch

from minifuse.attention.batch import AttentionBackend
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.model.text.load import load_weights
from minifuse.parallel.communicator import RankLost
from minifuse.parallel.order import Order, Setup, update_sequences
from minifuse.parallel.rank import Rank, join


class FollowingRunner(TorchRunner):
    """Computes a plan up to the gathered logits: only rank 0 samples."""

    def compute(self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend) -> Ran:
        self.logits(plan, sequences, attention)
        return Ran({})


def main() -> None:
    """Carry out the orders that arrive on a connection, whose descriptor is the argument."""
    connection = Connection(int(sys.argv[1]))
    try:
        _receive_orders(connection)
    except (EOFError, ConnectionError):
        os._exit(0)  # rank 0 has closed or has ended; do not wait for threads that may still wait for it
    except BaseException as error:
        _fail(connection, error)


def _receive_orders(connection: Connection) -> None:
    setup: Setup = connection.recv()
    torch.set_num_threads(setup.threads)
    _use_device(setup)
    rank = _prepare(connection, setup)
    # Of each worker: its thread, its runner, and the sequences that it knows.
    workers: dict[int, tuple[ThreadPoolExecutor, MovingRunner, dict[str, Sequence]]] = {}
    behind: dict[int, Future[Ran]] = {}  # step -> a plan without work that has not landed on every rank
    while True:
        order: Order = connection.recv()
        for step in order.landed:  # on rank 0, which may now write where they are still copied from here
            behind.pop(step).result()
        if not order.plan.work:
            behind[order.plan.step] = rank.transfers.behind(order.plan)
            continue
        worker = order.plan.worker
        if worker not in workers:
            connection.send(None)  # ready to open it
            _, run = rank.open_worker()  # rank 0 does the same after sending the worker's first order
            workers[worker] = (ThreadPoolExecutor(1), run, {})
        thread, run, sequences = workers[worker]
        thread.submit(_compute, connection, setup, order, run, sequences)


def _prepare(connection: Connection, setup: Setup) -> Rank:
    """Load the whole model, join the other ranks, keep this rank's part of it.

    A checkpoint is read on the host, because the whole model need not fit one device. Random weights are drawn on the
    device, as rank 0's are, because each kind of device draws other numbers.
    """
    random = setup.source.directory is None
    model = load_weights(setup.source, setup.dtype, setup.device if random else "cpu", setup.seed, pack=False)
    connection.send(None)  # ready to join
    connection.recv()  # all ranks are ready
    join(setup)
    rank = Rank(setup, model, FollowingRunner)
    connection.send(None)
    return rank


def _compute(
    connection: Connection, setup: Setup, order: Order, run: MovingRunner, sequences: dict[str, Sequence]
) -> None:
    """Carry out one order, in its worker's thread."""
    try:
        _use_device(setup)
        update_sequences(order, sequences)
        run(order.plan, sequences)
    except RankLost:
        return  # the rank that was lost reports why, and rank 0 notices that this one has stopped
    except BaseException as error:
        _fail(connection, error)


def _use_device(setup: Setup) -> None:
    """Set the device of this thread: in CUDA, every thread has its own current device."""
    if setup.device == "cuda":
        torch.cuda.set_device(setup.rank)


def _fail(connection: Connection, error: BaseException) -> None:
    """Report the error and end at once, so that other ranks' collectives fail."""
    try:
        connection.send(f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip("."))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
