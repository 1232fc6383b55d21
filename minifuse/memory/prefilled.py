"""KV of prompts that were computed apart and wait for a row of the batch (Baton, 4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Extent
from minifuse.core.shapes import Rectangle
from minifuse.memory.allocator import RunAllocator


class _Row(NamedTuple):
    offset: int  # its first slot
    width: int  # padding included
    place: Extent  # of the prompt


class Prefilled:
    """Slots [offset, offset + size) of the device, where prompts are computed as rectangles and kept row by row.

    A batch of prompts is padded on the left to the longest; a row is free when its KV has been embedded.

    >>> prefilled = Prefilled(100, 12)
    >>> prefilled.take(["a", "b"], [2, 3])
    Rectangle(offset=100, rows=2, stride=3, start=0, stop=3, begin=0)
    >>> prefilled.rows["a"].place
    Extent(offset=101, capacity=2)
    >>> prefilled.in_the_way(6), prefilled.in_the_way(9), prefilled.in_the_way(13)
    ((), ('b',), None)
    >>> prefilled.give_back("a")
    Extent(offset=101, capacity=2)
    """

    def __init__(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size
        self.free = RunAllocator(size)
        self.rows: dict[str, _Row] = {}

    @property
    def num_used(self) -> int:
        return self.size - self.free.num_free

    def used_without(self, names: Iterable[str]) -> int:
        """Slots in use when these rows have left."""
        return self.num_used - sum([self.rows[name].width for name in names])

    def in_the_way(self, size: int) -> tuple[str, ...] | None:
        """The rows computed last that must leave before one run of `size` slots is free; None: it never is."""
        free, names = self.free.copy(), list[str]()
        for name, row in reversed(self.rows.items()):
            if free.longest >= size:
                break
            free.free(row.offset - self.offset, row.width)
            names.append(name)
        return tuple(names) if free.longest >= size else None

    def take(self, names: Seq[str], lengths: Seq[int]) -> Rectangle:
        """Slots for these prompts. Raise `LawBroken` if they do not fit."""
        width = max(lengths)
        first = self.free.allocate(len(names) * width)
        if first is None:
            raise LawBroken("budget", f"prompts of {lengths} tokens were admitted, and {self.free.runs} are free")
        for i, (name, length) in enumerate(zip(names, lengths, strict=True)):
            offset = self.offset + first + i * width
            self.rows[name] = _Row(offset, width, Extent(offset + width - length, length))
        return Rectangle(self.offset + first, len(names), width, 0, width)

    def give_back(self, name: str) -> Extent:
        """Free a row. Returns where the prompt was."""
        row = self.rows.pop(name)
        self.free.free(row.offset - self.offset, row.width)
        return row.place

    def check(self) -> None:
        self.free.check((row.offset - self.offset, row.width) for row in self.rows.values())
