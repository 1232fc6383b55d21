"""Starts threads that compute on one core each."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch


def one_core_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Start threads in which torch's loops start no further threads.

    If they did, OpenMP would have more threads than cores, and from then on all would sleep while they wait: small
    products then take 1.5 times as long.
    """
    before, all_there = torch.get_num_threads(), Barrier(count)
    pool = ThreadPoolExecutor(count, name, _use_one_core)
    list(pool.map(lambda _: all_there.wait(), range(count)))
    torch.set_num_threads(before)  # undo: what a thread sets becomes the default of later ones
    return pool


def _use_one_core() -> None:
    torch.get_num_threads()  # a thread's first loop sets what was set last in any thread, unless this was asked before
    torch.set_num_threads(1)
