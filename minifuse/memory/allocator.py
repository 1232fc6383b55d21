"""Allocates runs of adjacent slots first-fit, and merges adjacent free runs (Knuth, vol. 1, 2.5)."""

from bisect import bisect_left
from collections.abc import Iterable

from minifuse.core.errors import LawBroken


class RunAllocator:
    """Keeps the free runs of slots in [0, capacity), sorted by offset and merged."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.runs = [(0, capacity)] if capacity else []  # (offset, length)
        self.num_free = capacity

    def copy(self) -> "RunAllocator":
        twin = RunAllocator(self.capacity)
        twin.runs, twin.num_free = [*self.runs], self.num_free
        return twin

    @property
    def longest(self) -> int:
        """Return how many slots the longest free run has."""
        return max([length for _, length in self.runs], default=0)

    def allocate(self, size: int) -> int | None:
        """Take `size` slots of the first free run with room. Returns their offset, or None."""
        for index, (offset, length) in enumerate(self.runs):
            if length >= size:
                self.runs[index : index + 1] = [(offset + size, length - size)] if length > size else []
                self.num_free -= size
                return offset
        return None

    def free(self, offset: int, size: int) -> None:
        """Free slots [offset, offset + size); raise `LawBroken` if one is not taken."""
        index = bisect_left(self.runs, (offset, 0))
        low = sum(self.runs[index - 1]) if index else 0
        high = self.runs[index][0] if index < len(self.runs) else self.capacity
        if offset < low or offset + size > high:
            raise LawBroken("conservation", f"slots [{offset}, {offset + size}) were freed twice or never handed out")
        self.num_free += size
        start = index - 1 if index and offset == low else index
        stop = index + 1 if index < len(self.runs) and offset + size == high else index
        merged = [*self.runs[start:index], (offset, size), *self.runs[index:stop]]
        self.runs[start:stop] = [(merged[0][0], sum([length for _, length in merged]))]

    def check(self, owned: Iterable[tuple[int, int]]) -> None:
        """Raise `LawBroken` unless `owned` and free runs together cover every slot exactly once."""
        position = 0
        for offset, length in sorted([*self.runs, *owned]):
            if offset != position:
                raise LawBroken("conservation", f"slots near {position} have no owner, or two")
            position += length
        if position != self.capacity or self.num_free != sum([length for _, length in self.runs]):
            what = f"slots end at {position}, not {self.capacity}, or {self.num_free} are not those free in {self.runs}"
            raise LawBroken("conservation", what)
