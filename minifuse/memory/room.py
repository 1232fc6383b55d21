"""What is free in tiered memory, to be tried out: counted, so that nothing is copied (Pensieve, 3.4.3)."""

from __future__ import annotations

from collections import Counter

from minifuse.memory.chunks import Chunk
from minifuse.memory.owners import Owners
from minifuse.parsing import number
from minifuse.plan import Reason
from minifuse.request import Sequence

__all__ = ["TieredRoom"]


class TieredRoom:
    """A trial of the books of conversations.

    What a newcomer finds, on whichever tier, stays for it: it is no longer available to others.
    """

    def __init__(self, books: Owners, reserve: int) -> None:
        self._books = books
        self._size = books.size
        self._reserve = reserve
        self._busy = bool(books.running)
        self._free = books.num_available
        self._claimed: set[Chunk] = set()  # idle chunks that newcomers found
        self._left: Counter[Chunk] = Counter()  # chunks that evicted sequences have left
        self._extra: Counter[str] = Counter()  # chunks that sequences have been given beyond those in the books

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        books = self._books
        if why := books.why_not_yet(sequence):
            return Reason("not-released", sequence.id, f"not admitted: {why}")
        chunks = books.found(sequence)
        length = len(sequence) if growing else sequence.request.max_cached
        whole = max(books.chunks_of(length), len(chunks))
        idle = [chunk for chunk in chunks if chunk is not None and self._is_idle(chunk)]
        there = sum(chunk is not None and (chunk.device is not None or chunk in self._claimed) for chunk in chunks)
        needed = whole - there
        own = sum(chunk.device is not None and not chunk.copying for chunk in idle)
        kept = self._reserve if growing and self._busy else 0
        if needed > self._free - own - kept:
            left = f", {kept} of them kept for running requests" if kept else ""
            lacks = f"needs {number(needed, 'chunk')} of {books.size} KV tokens, {self._free - own} are free{left}"
            return Reason("memory-full", sequence.id, f"not admitted: {lacks}")
        self._free -= own + needed
        self._claimed.update(idle)
        self._extra[sequence.id] = whole
        self._busy = True
        return None

    def _is_idle(self, chunk: Chunk) -> bool:
        return chunk.users == self._left[chunk] and chunk not in self._claimed

    def extend(self, sequence: Sequence) -> Reason | None:
        name, length = sequence.request.id, len(sequence.tokens)
        owner = self._books.running.get(name)
        if owner is not None and length <= len(owner.chunks) * self._size:
            return None  # as in most iterations
        return self.extend_to(name, length)

    def extend_to(self, name: str, length: int) -> Reason | None:
        """As `extend`, so that a sequence, in the books or admitted here, can hold so many tokens."""
        books = self._books
        owner = books.running.get(name)
        have, promised = (len(owner.chunks), owner.promised) if owner is not None else (0, 0)
        needed = books.chunks_of(length) - have
        if needed <= 0:
            return None
        needed -= promised + self._extra[name]
        if needed > 0:
            if needed > self._free:
                text = f"has no room for its next token: needs {number(needed, 'chunk')}, {self._free} are free"
                return Reason("memory-full", name, text)
            self._free -= needed
            self._extra[name] += needed
        return None

    def evict(self, sequence: Sequence) -> None:
        owner = self._books.running[sequence.id]
        self._free += owner.promised
        for chunk in owner.chunks:
            assert chunk is not None
            self._left[chunk] += 1
            self._free += chunk.users == self._left[chunk] and not chunk.copying
