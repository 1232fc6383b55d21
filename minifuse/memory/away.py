"""KV of sequences that wait on the host until they are copied back, and the moves that carry it (Baton, 4.2, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from minifuse.core.places import Runs, runs_in
from minifuse.core.plan import Extent, Move, MoveKind
from minifuse.memory.allocator import RunAllocator

__all__ = ["Away", "copies"]


class _Run(NamedTuple):
    offset: int  # its first slot on the host
    length: int  # in tokens


class Away:
    """One run of slots on the host for each sequence that is away from the device.

    >>> away = Away(8)
    >>> away.leave("a", Extent(40, 9), 5)  # doctest: +NORMALIZE_WHITESPACE
    [Move(kind='swap_out', source=40, target=0, num_tokens=5, source_tier='device', target_tier='host', moment='first',
     wave=0)]
    >>> away.leave("b", Extent(50, 9), 4) is None, away.fit([3]), away.fit([2, 2])
    (True, True, False)
    >>> away.back("a", Extent(10, 9))[0].target, away.num_used
    (10, 0)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = RunAllocator(capacity)
        self.runs: dict[str, _Run] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.runs

    @property
    def num_used(self) -> int:
        return self.capacity - self.free.num_free

    def fit(self, counts: Iterable[int]) -> bool:
        """Whether so many tokens of each of several sequences fit, one sequence after the other."""
        free = self.free.copy()
        return None not in [free.allocate(count) for count in counts]

    def leave(self, name: str, place: Extent | Runs, count: int) -> list[Move] | None:
        """Copy the first `count` tokens of a sequence here. None: there is no room for them."""
        offset = self.free.allocate(count) if count else None
        if offset is None:
            return None
        self.runs[name] = _Run(offset, count)
        return [
            Move("swap_out", slot, offset + i, length, target_tier="host") for i, slot, length in _runs(place, count)
        ]

    def back(self, name: str, place: Extent | Runs) -> list[Move]:
        """Copy a sequence to its new place on the device, and give up what it has here."""
        offset, count = self.runs[name]
        self.drop(name)
        return [
            Move("swap_in", offset + i, slot, length, source_tier="host") for i, slot, length in _runs(place, count)
        ]

    def drop(self, name: str) -> None:
        self.free.free(*self.runs.pop(name))

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        self.free.check(self.runs.values())


def copies(kind: MoveKind, before: Extent | Runs, after: Extent | Runs, count: int) -> list[Move]:
    """Moves of the first `count` tokens from one place on the device to another.

    >>> copies("embed", Extent(4, 9), Runs(((10, 3), (20, 4))), 5)  # doctest: +NORMALIZE_WHITESPACE
    [Move(kind='embed', source=4, target=10, num_tokens=3, source_tier='device', target_tier='device', moment='first',
     wave=0),
     Move(kind='embed', source=7, target=20, num_tokens=2, source_tier='device', target_tier='device', moment='first',
     wave=0)]
    """
    cuts = sorted({first for place in (before, after) for first, _, _ in _runs(place, count)} | {count})
    return [
        Move(kind, before.slots(start, stop)[0], after.slots(start, stop)[0], stop - start)
        for start, stop in pairwise(cuts)
    ]


def _runs(place: Extent | Runs, count: int) -> Iterator[tuple[int, int, int]]:
    """The first `count` tokens of a place, run by run: the first token, its slot, and how many there are.

    >>> list(_runs(Runs(((10, 3), (20, 4))), 5))
    [(0, 10, 3), (3, 20, 2)]
    """
    first = 0
    for slot, length in runs_in(place):
        if first >= count:
            return
        yield first, slot, min(length, count - first)
        first += length
