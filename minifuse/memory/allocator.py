"""Runs of consecutive slots, allocated first-fit and merged when they are freed (Knuth, vol. 1, section 2.5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

from minifuse.core.errors import LawBroken

__all__ = ["RunAllocator"]


class RunAllocator:
    """The free runs of [0, capacity), sorted, with at least one taken slot between two of them.

    >>> runs = RunAllocator(10)
    >>> runs.allocate(4), runs.allocate(4), runs.allocate(4)
    (0, 4, None)
    >>> runs.free(0, 4)
    >>> runs.allocate(3), runs.runs
    (0, [(3, 1), (8, 2)])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.runs: list[tuple[int, int]] = [(0, capacity)] if capacity else []  # (offset, length)
        self.num_free = capacity

    def copy(self) -> RunAllocator:
        twin = RunAllocator(0)
        twin.capacity, twin.runs, twin.num_free = self.capacity, list(self.runs), self.num_free
        return twin

    @property
    def longest(self) -> int:
        """The longest free run. Looks at all of them."""
        return max(map(itemgetter(1), self.runs), default=0)

    def allocate(self, size: int) -> int | None:
        """Take `size` slots of the first run that has so many. Returns their offset; None if no run has."""
        for index, (offset, length) in enumerate(self.runs):
            if length >= size:
                self.runs[index : index + 1] = [(offset + size, length - size)] if length > size else []
                self.num_free -= size
                return offset
        return None

    def free(self, offset: int, size: int) -> None:
        """Make slots [offset, offset + size) free again.

        Raises:
            LawBroken: part of it is free already, or lies outside.
        """
        index = bisect_left(self.runs, (offset, 0))
        before = self.runs[index - 1] if index else None
        after = self.runs[index] if index < len(self.runs) else None
        overlaps = (before and sum(before) > offset) or (after and offset + size > after[0])
        if overlaps or offset < 0 or offset + size > self.capacity:
            raise LawBroken("conservation", f"slots [{offset}, {offset + size}) were freed twice or never handed out")
        self.num_free += size
        start, stop = index, index
        if before and sum(before) == offset:
            start, offset, size = index - 1, before[0], size + before[1]
        if after and offset + size == after[0]:
            stop, size = index + 1, size + after[1]
        self.runs[start:stop] = [(offset, size)]

    def check(self, owned: Iterable[tuple[int, int]]) -> None:
        """Raise `LawBroken` unless the `owned` runs (offset, length) and the free ones are all slots, each once."""
        position = 0
        for offset, length in sorted([*self.runs, *owned]):
            if offset != position:
                raise LawBroken("conservation", f"slots near {position} have no owner, or two")
            position += length
        if position != self.capacity:
            raise LawBroken("conservation", f"free and owned slots are {position} of {self.capacity}")
        if self.num_free != sum(length for _, length in self.runs):
            raise LawBroken("conservation", f"{self.num_free} slots are counted as free in {self.runs}")
