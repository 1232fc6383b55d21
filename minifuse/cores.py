"""The processor cores: how many this process may use, how many other processes leave free, how many those used.

A library of parallel loops (OpenMP, beneath torch) lets its threads wait for each other by spinning. Where other
processes hold the cores, threads spin for one that cannot run: a run then takes a hundred times as long.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["OtherWork", "Used", "processor", "share_cores", "usable_cores", "wait_passively"]

PROC = Path("/proc")  # Linux; elsewhere what others do is not known
SHORTEST_S = 0.1  # in which use, told in steps of 0.01 s on every core, is known well enough
SMALLEST_SHARED = 30_000_000  # parameters: 5 million are as fast on one core, 82 million 1.5 times as fast on two


def usable_cores() -> set[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def processor() -> str:
    """The name of the processor, as its maker gives it where that is known."""
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def wait_passively(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads of torch sleep while they wait, unless the user has said how they should: before torch is imported.

    Measured in benchmarks/busy.py.
    """
    if not environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


class Used(NamedTuple):
    """Processor time on the cores that this process may use, in seconds."""

    by_all: float
    by_us: float  # with the processes that this one has started

    @classmethod
    def now(cls) -> Used | None:
        """What has been used since the machine started; None where that is not known."""
        ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 1
        try:
            lines = (PROC / "stat").read_text().splitlines()
            children = [(PROC / str(one.pid) / "stat").read_text() for one in multiprocessing.active_children()]
        except OSError:
            return None
        busy = 0
        mine = {f"cpu{number}" for number in usable_cores()}
        for name, *counts in map(str.split, lines):
            if name in mine:
                user, nice, system, _, _, *interrupts = map(int, counts[:8])  # without idle and waiting for disks
                busy += user + nice + system + sum(interrupts)
        theirs = sum(int(ticks) for stat in children for ticks in stat.rpartition(")")[2].split()[11:13])
        return cls(busy / ticks, sum(os.times()[:4]) + theirs / ticks)


class OtherWork:
    """How many cores other processes have used since this was made.

    >>> OtherWork().cores()  # after 10 s in which one other process computed all the time
    1.0
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._begin = Used.now()

    def cores(self) -> float | None:
        """On average since then; None where it is not known, or the time was too short."""
        end, seconds = Used.now(), time.perf_counter() - self._began_s
        if self._begin is None or end is None or seconds < SHORTEST_S:
            return None
        others = (end.by_all - self._begin.by_all) - (end.by_us - self._begin.by_us)
        return min(max(0.0, others / seconds), float(len(usable_cores())))


def share_cores(num_parameters: int, others: float | None) -> None:
    """Let torch use as many threads as the work of an iteration and the cores that others leave free are worth.

    Never more than it has: the user may have chosen fewer (OMP_NUM_THREADS).

    Args:
        num_parameters: of the model, each of which an iteration reads.
        others: cores that other processes use; None: not known.
    """
    import torch

    free = max(1, round(len(usable_cores()) - (others or 0.0)))
    threads = 1 if num_parameters < SMALLEST_SHARED else free
    torch.set_num_threads(min(threads, torch.get_num_threads()))
