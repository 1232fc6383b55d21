"""Runs of slots that plans in flight copy from."""

from collections.abc import Iterable

from minifuse.core.plan import Extent
from minifuse.memory.allocator import RunAllocator


class Copied:
    """Frees runs, each not before the plans have run that copy from it.

    >>> free = RunAllocator(8)
    >>> _ = free.allocate(8)
    >>> copied = Copied(free)
    >>> copied.begin(2)
    >>> copied.drop(Extent(0, 4), first=2)
    >>> free.num_free, copied.num_dropped
    (0, 4)
    >>> copied.ran([2, 7])
    >>> free.num_free, copied.num_dropped
    (4, 0)
    """

    def __init__(self, free: RunAllocator) -> None:
        self.free = free
        self.num_dropped = 0  # slots of dropped runs that are not free
        self.copies: dict[int, int] = {}  # first slot that is copied -> how many plans in flight copy it
        self.dropped: dict[int, Extent] = {}  # first slot that is copied -> the run

    def begin(self, first: int) -> None:
        """Record that the next plan copies slots from `first` on."""
        self.copies[first] = self.copies.get(first, 0) + 1

    def drop(self, run: Extent, first: int) -> None:
        """Free a run once the plans that copy slots from `first` on have run."""
        if first not in self.copies:
            self.free.free(*run)
        else:
            self.dropped[first] = run
            self.num_dropped += run.capacity

    def ran(self, sources: Iterable[int]) -> None:
        """Record that a plan has run that copied from these slots, among others."""
        for first in sources:
            if first not in self.copies:
                continue
            self.copies[first] -= 1
            if not self.copies[first]:
                del self.copies[first]
                if (run := self.dropped.pop(first, None)) is not None:
                    self.num_dropped -= run.capacity
                    self.free.free(*run)
