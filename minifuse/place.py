"""Where a piece of work lies in memory: consecutive slots, several runs of them, blocks, or slots of states."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

__all__ = ["BlockTables", "Extent", "Pages", "Place", "Runs", "State"]


class Extent(NamedTuple):
    """KV of one sequence in consecutive slots: token i lies in slot `offset + i`, up to `capacity` tokens."""

    offset: int
    capacity: int

    def slots(self, start: int, stop: int) -> Seq[int]:
        """The slots of tokens [start, stop)."""
        return range(self.offset + start, self.offset + stop)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The first slot and the length of its one run."""
        return (self,)


class Runs(NamedTuple):
    """KV of one sequence in several runs of consecutive slots, which its tokens fill one after the other.

    Between two runs lies a gap, or the one ends where a row of a rectangle ends and the other where it begins.

    >>> Runs(((10, 3), (20, 4))).slots(2, 5)  # tokens 0 to 2 in slots 10 to 12, the others from slot 20 on
    [12, 20, 21]
    """

    runs: tuple[tuple[int, int], ...]  # (first slot, slots)

    @property
    def capacity(self) -> int:
        return sum([length for _, length in self.runs])

    def slots(self, start: int, stop: int) -> Seq[int]:
        """The slots of tokens [start, stop)."""
        slots: list[int] = []
        for slot, length in self.runs:
            if start < length and stop > 0:
                slots += range(slot + max(start, 0), slot + min(stop, length))
            start, stop = start - length, stop - length
        return slots


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


Place = Extent | Runs | Pages | State


class BlockTables:
    """The block tables of sequences as steps tell them: of each, only what is new since the last step that had it.

    A place that is `Pages` is told as [kept, new, size]: the first `kept` blocks of the sequence's table as it was told
    last, then the `new` ones. Other places are told as they are.

    >>> tables = BlockTables()
    >>> for blocks in ((4, 7), (4, 7), (4, 7, 2), (4, 9, 2)):
    ...     print(tables.told("a", Pages(blocks, 16)))
    [0, [4, 7], 16]
    [2, [], 16]
    [2, [2], 16]
    [1, [9, 2], 16]
    """

    def __init__(self) -> None:
        self.last: dict[str, Seq[int]] = {}

    def told(self, name: str, place: Place) -> list[Any]:
        """A place of a sequence, for JSON."""
        if not isinstance(place, Pages):
            return list(place)
        blocks, last = place.blocks, self.last.get(name, ())
        self.last[name] = blocks
        kept = len(last)
        if blocks is not last and blocks[:kept] != last:
            kept = next((i for i, (a, b) in enumerate(zip(blocks, last, strict=False)) if a != b), len(blocks))
        return [kept, list(blocks[kept:]), place.size]

    def whole(self, name: str, told: list[Any]) -> list[Any]:
        """What `told` was told of: of `Pages` the block table and the size."""
        if len(told) != 3:
            return told
        kept, new, size = told
        blocks = self.last[name] = (*self.last.get(name, ())[:kept], *new)
        return [list(blocks), size]

    def forget(self, names: Iterable[str]) -> None:
        """Sequences that have finished. Whatever is told of them later is told whole."""
        for name in names:
            self.last.pop(name, None)
