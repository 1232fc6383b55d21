"""Runs of consecutive slots, handed out first-fit and merged again when they come back."""

from __future__ import annotations

from bisect import bisect_left

from minifuse.errors import LawBroken

__all__ = ["RunAllocator"]


class RunAllocator:
    """Free runs of [0, capacity), kept sorted and never touching each other.

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

    def copy(self) -> RunAllocator:
        twin = RunAllocator(0)
        twin.capacity, twin.runs = self.capacity, list(self.runs)
        return twin

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self.runs)

    @property
    def longest(self) -> int:
        return max((length for _, length in self.runs), default=0)

    def allocate(self, size: int) -> int | None:
        """Offset of the first run that holds `size` slots, now taken; None if no run does."""
        for index, (offset, length) in enumerate(self.runs):
            if length >= size:
                self.runs[index : index + 1] = [(offset + size, length - size)] if length > size else []
                return offset
        return None

    def free(self, offset: int, size: int) -> None:
        """Give [offset, offset + size) back.

        Raises:
            LawBroken: part of it is free already, or lies outside.
        """
        index = bisect_left(self.runs, (offset, 0))
        before = self.runs[index - 1] if index else None
        after = self.runs[index] if index < len(self.runs) else None
        overlaps = (before and sum(before) > offset) or (after and offset + size > after[0])
        if overlaps or offset < 0 or offset + size > self.capacity:
            raise LawBroken("conservation", f"slots [{offset}, {offset + size}) were freed twice or never handed out")
        start, stop = index, index
        if before and sum(before) == offset:
            start, offset, size = index - 1, before[0], size + before[1]
        if after and offset + size == after[0]:
            stop, size = index + 1, size + after[1]
        self.runs[start:stop] = [(offset, size)]
