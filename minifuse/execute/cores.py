"""Finds how many processor cores this process may use, and how many others use.

OpenMP, which torch uses for parallel loops, lets threads wait for each other by spinning. If other processes hold the
cores, threads spin while the thread that they wait for cannot run: a run then takes a hundred times as long.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROC = Path("/proc")  # on Linux only; elsewhere the use by others is unknown
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
KEPT = 2**30  # bytes
SHORTEST_S = 0.1  # use is counted in steps of 0.01 s per core: over less time the average is too coarse
SMALLEST_SHARED = 2_000_000  # parameters: a second core speeds up 5 million 1.6 times for 8 requests, 0.8 not at all
SPINS = "6000"  # looks at whether there is work, before a thread sleeps


def usable_cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def processor() -> str:
    """Return the processor's name, as its maker gives it if known."""
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's threads spin briefly before they sleep, unless the user chose otherwise.

    Call this before importing torch. Threads that sleep at once halve the tokens per second of small models, since they
    are woken for each operator; threads that spin for long wait for others that cannot run (benchmarks/busy.py).
    """
    if not environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        environment["GOMP_SPINCOUNT"] = SPINS


def used_by_others() -> float | None:
    """Return the seconds that other processes used this process's cores; None if unknown.

    Only the difference between two calls has a meaning. Child processes of this process do not count as others.
    """
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
            user, nice, system, _, _, *interrupts = map(int, counts[:8])  # without idle and disk-waiting times
            busy += user + nice + system + sum(interrupts)
    busy -= sum(int(used) for stat in children for used in stat.rpartition(")")[2].split()[11:13])
    return busy / ticks - sum(os.times()[:4])


def keep_compiled(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let oneDNN keep what it compiles, unless the user has chosen otherwise.

    Call this before importing torch. A new size takes about a millisecond, and by default the 1,024 last products are
    kept: those of some 200 sizes.
    """
    if not environment.keys() & {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"}:
        environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "16384"


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> None:
    """Let the C library keep freed memory, unless the user has chosen otherwise.

    By default glibc returns large pieces to the system, which clears them when they are next used: a prompt of 600
    tokens then takes 1.6 times as long as without (3 layers of 192 numbers, on a CPU).
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in environment)
    if sys.platform == "linux" and not chosen:
        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(M_MMAP_THRESHOLD, KEPT)
            mallopt(M_TRIM_THRESHOLD, KEPT)


class OtherWork:
    """Measures how many cores other processes use, from its creation on.

    >>> OtherWork().cores()  # after 10 s in which one other process computed all the time
    1.0
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._begin = used_by_others()

    def cores(self) -> float | None:
        """Return the average since creation; None if unknown, or if too little time has passed."""
        end, seconds = used_by_others(), time.perf_counter() - self._began_s
        if self._begin is None or end is None or seconds < SHORTEST_S:
            return None
        return min(max(0.0, (end - self._begin) / seconds), float(len(usable_cores())))


def load_on_free_cores(num_parameters: int, load: Callable[[], Any]) -> Any:
    """Load a model, then share the cores that others left free during loading (`share_cores`)."""
    others = OtherWork()
    model = load()
    share_cores(num_parameters, others.cores())
    return model


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restore torch's number of threads afterwards, for another model that may use more."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def share_cores(num_parameters: int, others: float | None) -> None:
    """Limit torch's threads to the free cores, or to one for a small model.

    The number of threads never grows: the user may have chosen it (OMP_NUM_THREADS).

    Args:
        num_parameters: parameters of the model; an iteration reads them all.
        others: how many cores other processes use; None if unknown.
    """
    import torch

    free = max(1, round(len(usable_cores()) - (others or 0.0)))
    threads = 1 if num_parameters < SMALLEST_SHARED else free
    torch.set_num_threads(min(threads, torch.get_num_threads()))
