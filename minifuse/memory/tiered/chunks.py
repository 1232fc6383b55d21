"""Chunks of a conversation's KV, their owners, and the idle chunks to reclaim (Pensieve, 3.4.3.1)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import count

from minifuse.core.plan import Span
from minifuse.core.request import Sequence
from minifuse.memory.tiered.eviction import Eviction

_NUMBERS = count()


@dataclass(slots=True, eq=False)
class Chunk:
    """The KV of tokens [index * size, (index + 1) * size) of a text.

    It lies in a block of the device, of the host, or in both. A chunk without users and without a copy in flight is
    idle: it may be reclaimed.
    """

    index: int
    device: int | None = None  # its block on the device
    host: int | None = None  # its block on the host
    num_tokens: int = 0  # leading tokens whose KV is written
    users: int = 0  # admitted sequences that read it
    owners: list[Owner] = field(default_factory=list)  # several only if it is shared
    active_s: float = 0.0  # when it was last used, or when a request of its conversation last arrived
    copying: bool = False  # a copy to the host ahead of time is in flight
    arriving: bool = False  # its KV is being moved to another tier by a plan that has not completed
    number: int = field(default_factory=_NUMBERS.__next__)  # unique
    digest: bytes = b""  # digest of the text up to the end of the chunk, if it may be shared

    @property
    def is_idle(self) -> bool:
        return not self.users and not self.copying and not self.arriving

    @property
    def rank(self) -> tuple[float, int]:
        """Return a sort key: of chunks with equal context, the longest idle comes first."""
        return self.active_s, self.number


@dataclass(slots=True, eq=False)
class Owner:
    """An owner of KV: a conversation, or a request that belongs to no conversation.

    `chunks` has the chunks of the first `end` tokens and, while a sequence runs, the chunks that the sequence will
    write next. A dropped chunk is missing from `chunks` until a sequence runs. `holes` are the dropped tokens that the
    sequence has yet to compute.
    """

    name: str
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by their index, in order
    end: int = 0
    sequence: Sequence | None = None  # its admitted sequence, if any
    holes: tuple[Span, ...] = ()


Entry = tuple[tuple[float, int], Chunk]  # a chunk's unique rank, and the chunk
Worth = tuple[float, int, tuple[float, int], Chunk]  # value, index, rank, chunk: index and rank break ties


class Idle:
    """Keeps the idle chunks, and finds the one of least value.

    Values change with time, and so may their order: Cost / T falls faster for a chunk that has been idle for less time.
    But of chunks with equal context, the one idle for longest always has the least value. So only one chunk for each
    length of context is compared, however many conversations there are. Calls with the same `now` share these
    comparisons.
    """

    def __init__(self, eviction: Eviction, size: int) -> None:
        self._eviction = eviction
        self._size = size
        self._by_index: dict[int, list[Entry]] = {}
        self._num = 0
        self._now = math.nan  # the time at which the heap's values were computed
        self._heap: list[Worth] = []  # the first chunk of each index, and some outdated entries

    def __len__(self) -> int:
        return self._num

    def add(self, chunk: Chunk) -> None:
        entries = self._by_index.setdefault(chunk.index, [])
        insort(entries, (chunk.rank, chunk))
        self._num += 1
        if entries[0][1] is chunk:
            self._now = math.nan  # the heap is outdated: `lowest` makes a new one

    def remove(self, chunk: Chunk) -> None:
        entries = self._by_index[chunk.index]
        del entries[bisect_left(entries, (chunk.rank, chunk))]
        self._num -= 1
        if not entries:
            del self._by_index[chunk.index]

    def value(self, chunk: Chunk, now: float) -> tuple[float, int, tuple[float, int]]:
        """Return a chunk's value at time `now`, with tie-breakers: its index and its rank."""
        return self._worth(chunk.index, chunk.rank, chunk, now)[:3]

    def _worth(self, index: int, rank: tuple[float, int], chunk: Chunk, now: float) -> Worth:
        return self._eviction.value((index + 1) * self._size, now - rank[0]), index, rank, chunk

    def lowest(self, now: float) -> Chunk | None:
        """Return the chunk of least value at time `now`, or None."""
        if now != self._now:
            self._now = now
            self._heap = [self._worth(index, *entries[0], now) for index, entries in self._by_index.items()]
            heapq.heapify(self._heap)
        heap = self._heap
        while heap:
            _, index, rank, chunk = heap[0]
            entries = self._by_index.get(index)
            if entries and entries[0] == (rank, chunk):  # otherwise the entry is outdated
                return chunk
            heapq.heappop(heap)
            if entries:
                heapq.heappush(heap, self._worth(index, *entries[0], now))
        return None
