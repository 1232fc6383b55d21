"""KV of prefilled prompts that wait for a row (Baton, 4.2)."""

from typing import NamedTuple

from minifuse.core.plan import Extent
from minifuse.core.shapes import Rectangle
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.rows.copied import Copied


class _Row(NamedTuple):
    slots: Extent  # the whole row, padding included
    place: Extent  # the part of the row that holds the prompt


class Prefilled:
    """Keeps the KV of prefilled prompts in slots [offset, offset + size) of the device.

    A batch of prompts is a rectangle, left-padded to the longest. A row is freed when its sequence leaves it.

    >>> prefilled = Prefilled(100, 12)
    >>> prefilled.take({"a": 2, "b": 3})
    Rectangle(offset=100, rows=2, stride=3, start=0, stop=3, begin=0)
    >>> prefilled.give_back("a")
    Extent(offset=101, capacity=2)
    >>> prefilled.num_used
    3
    """

    def __init__(self, offset: int, size: int) -> None:
        self.size = size
        self.free = RunAllocator(offset + size)
        self.batch = Extent(0, offset)  # the slots before `offset`, which are never free here
        self.free.allocate(offset)
        self.copied = Copied(self.free)
        self.rows: dict[str, _Row] = {}  # in the order in which the prompts were prefilled

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    @property
    def num_used(self) -> int:
        return self.size - self.free.num_free - self.copied.num_dropped

    def take(self, lengths: dict[str, int]) -> Rectangle:
        """Allocate a rectangle for prompts of these lengths. A trial must have found room."""
        width = max(lengths.values())
        first = self.free.allocate(len(lengths) * width)
        assert first is not None  # the trial has found it
        for row, (name, length) in enumerate(lengths.items()):
            slots = Extent(first + row * width, width)
            self.rows[name] = _Row(slots, Extent(slots.offset + width - length, length))
        return Rectangle(first, len(lengths), width, 0, width)

    def embed(self, name: str) -> Extent:
        """Free a sequence's row when the next plan, which copies it, has run.

        Returns:
            The slots of the prompt.
        """
        self.copied.begin(self.rows[name].place.offset)
        return self.give_back(name)

    def give_back(self, name: str) -> Extent:
        """Free a sequence's row. Returns the slots of its prompt."""
        row = self.rows.pop(name)
        self.copied.drop(row.slots, row.place.offset)
        return row.place

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        self.free.check([self.batch, *(row.slots for row in self.rows.values()), *self.copied.dropped.values()])
