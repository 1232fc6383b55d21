"""Where a piece of work lies in memory: consecutive slots, blocks, or slots of states."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

__all__ = ["Extent", "Pages", "Place", "State"]


class Extent(NamedTuple):
    """KV of one sequence in consecutive slots: token i lies in slot `offset + i`, up to `capacity` tokens."""

    offset: int
    capacity: int

    def slots(self, start: int, stop: int) -> Seq[int]:
        """The slots of tokens [start, stop)."""
        return range(self.offset + start, self.offset + stop)


class Pages(NamedTuple):
    """KV of one sequence in blocks of `size` slots: token i lies in slot `blocks[i // size] * size + i % size`.

    >>> Pages((7, 2), 4).slots(2, 6)
    [30, 31, 8, 9]
    """

    blocks: tuple[int, ...]  # the block table
    size: int

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.size

    def slots(self, start: int, stop: int) -> Seq[int]:
        """The slots of tokens [start, stop)."""
        blocks, size = self.blocks, self.size
        return [blocks[i // size] * size + i % size for i in range(start, stop)]


class State(NamedTuple):
    """The states of one node of a cell graph: the slot that it reads for each input that is an `Output`, and the slot
    that it writes. A slot holds all outputs of one node.
    """

    reads: tuple[int, ...]
    slot: int

    @property
    def capacity(self) -> int:
        return 1

    def slots(self, start: int, stop: int) -> Seq[int]:
        """The slot that the node [start, stop) writes."""
        return (self.slot,)


Place = Extent | Pages | State
