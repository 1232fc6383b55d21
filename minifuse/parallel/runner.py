"""Rank 0's runner, which computes plans on all ranks at once (Flover, V-D)."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock
from typing import Self

import torch
import torch.distributed as dist

from minifuse.core.errors import MachineError
from minifuse.core.measured import measured_of
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute.moving import MovingRunner
from minifuse.parallel.communicator import Communicator, RankLost
from minifuse.parallel.followers import Followers
from minifuse.parallel.order import Ledger, Order
from minifuse.parallel.rank import Rank


class ParallelRunner:
    """Runs plans on all ranks: sends them to followers, computes rank 0's shard, samples.

    Each worker has a communicator: Flover's main stream has one for all its requests, concurrent instances one for each
    request. A worker's communicator is made when the worker runs its first plan.

    A plan that fails or is interrupted leaves the ranks in different states: the followers are then stopped, and no
    other plan can be run.

    Attributes:
        followers: the other ranks.
    """

    def __init__(self, rank: Rank, followers: Followers) -> None:
        """Take over followers that are ready; limit torch's threads until `close`."""
        self.followers = followers
        self._rank = rank
        self._ledgers = defaultdict[int, Ledger](Ledger)
        self._workers: dict[int, tuple[Communicator, MovingRunner]] = {}
        self._order_lock = Lock()
        self._failure_lock = Lock()
        self._landed: SimpleQueue[int] = SimpleQueue()  # steps that only moved KV, completed here since the last order
        self._failure: BaseException | None = None
        self._open = True
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(rank.setup.threads)

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        """Compute a plan; different workers' plans may be computed at once, in threads.

        Raises:
            MachineError: a rank failed, in this plan or an earlier one.
        """
        if not self._open:
            raise MachineError("The other ranks have been stopped: launch them again.") from self._failure
        try:
            communicator, run = self._order(plan, sequences)
            ran = run(plan, sequences)
        except BaseException as error:
            cause = self._cause(error)
            if cause is error:
                raise
            raise cause from error
        return ran._replace(measured=communicator.take(measured_of(ran)))

    def behind(self, plan: Plan) -> Future[Ran]:
        """Begin moves on all ranks; the returned future resolves when rank 0 has completed them.

        The first order after that tells the other ranks, which wait for their own moves before they carry it out.

        Args:
            plan: a plan without work, which only moves KV.
        """
        with self._order_lock:
            self._send(Order(plan, (), ()))
        landed = self._rank.transfers.behind(plan)
        landed.add_done_callback(lambda _: self._landed.put(plan.step))
        return landed

    def _send(self, order: Order) -> None:
        """Send an order; name the moves that have completed here since the last order.

        The caller holds `_order_lock`.
        """
        landed = tuple(self._landed.get() for _ in range(self._landed.qsize()))
        self.followers.send(order._replace(landed=landed))

    def _order(self, plan: Plan, sequences: dict[str, Sequence]) -> tuple[Communicator, MovingRunner]:
        """Send a plan to the followers; return rank 0's communicator and runner for its worker."""
        with self._order_lock:  # a follower opens a worker at its first plan: rank 0 must open it in step
            self._send(self._ledgers[plan.worker].order(plan, sequences))
            if plan.worker not in self._workers:
                self.followers.await_ready()  # `open_worker` would notice late that a rank has ended
                self._workers[plan.worker] = self._rank.open_worker()
            return self._workers[plan.worker]

    def _cause(self, error: BaseException) -> BaseException:
        """Stop the followers, and return what caused `error`.

        If `error` only says that a rank was lost, the cause is what a follower reports.
        """
        lost = isinstance(error, RankLost | OSError)
        with self._failure_lock:
            if self._failure is None:
                self._failure = (self.followers.failure() if lost else None) or error
                self.close()
            return self._failure if lost else error

    def close(self) -> None:
        """Stop the followers; no process is left. Call this when no plan is running."""
        if not self._open:
            return
        self._open = False
        self._rank.transfers.close()
        self.followers.close()
        dist.destroy_process_group()
        torch.set_num_threads(self._threads_before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
