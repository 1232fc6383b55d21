"""Which chunks belong to which owner, and what its next request finds of them (Pensieve, 3.4.3)."""

from __future__ import annotations

from hashlib import blake2b
from itertools import zip_longest

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Move, Span, Work
from minifuse.core.request import Sequence
from minifuse.memory.chunks import Chunk, Owner
from minifuse.memory.tiers import Tiers


def owner_of(sequence: Sequence) -> str:
    """What a sequence's KV belongs to: its conversation, or the request itself."""
    request = sequence.request
    return f"request {request.id}" if request.conversation is None else f"conversation {request.conversation}"


class Owners:
    """The chunks of conversations, and of requests without one.

    Args:
        share: texts that begin alike have the chunks of their beginning in common.
        keep: a conversation keeps its chunks when a request of it has ended.
    """

    def __init__(self, tiers: Tiers, *, share: bool, keep: bool) -> None:
        self.tiers, self.share, self.keep = tiers, share, keep
        self.size = tiers.size
        self.owners: dict[str, Owner] = {}
        self.running: dict[str, Owner] = {}  # by admitted sequence
        self.num_promised = 0  # blocks, the sum over `running`
        self._digests: dict[str, list[bytes]] = {}  # sequence -> of its text, up to the end of each whole chunk

    def chunks_of(self, num_tokens: int) -> int:
        """Chunks that so many tokens take: 6 tokens in chunks of 4 take 2."""
        return -(-num_tokens // self.size)

    @property
    def num_available(self) -> int:
        """Blocks of the device that are free or may be reclaimed, and are not promised."""
        return self.tiers.num_available - self.num_promised

    # --- what a sequence finds

    def why_not_yet(self, sequence: Sequence) -> str:
        """Why a newcomer waits whatever the room: what its conversation has is used, or moved; "" if it need not."""
        owner = self.owners.get(owner_of(sequence))
        if owner is not None and owner.sequence is not None:
            return f"the last request of its conversation, {owner.sequence.id}, is still in memory"
        moving = owner is not None and any(chunk.arriving for chunk in filter(None, owner.chunks))
        return "its KV is being moved" if moving else ""

    def found(self, sequence: Sequence) -> list[Chunk | None]:
        """The chunks that a newcomer has or can share, by position; None where there is none."""
        owner = self.owners.get(owner_of(sequence))
        if owner is not None and owner.sequence is not None:
            return []
        chunks = [] if owner is None else list(owner.chunks)
        if self.share:
            own, whole = len(chunks), (len(sequence) - 1) // self.size  # the last token is computed
            alike = [self.tiers.alike.get(digest) for digest in self._digests.get(sequence.id, [])[:whole]]
            shared = [None if chunk is None or chunk.arriving else chunk for chunk in alike]
            chunks = [chunk or other for chunk, other in zip_longest(chunks, shared)]
            while len(chunks) > own and chunks[-1] is None:
                chunks.pop()
        return chunks

    def receive(self, sequence: Sequence) -> None:
        """A request has arrived: its conversation is active again (the T of 3.4.3.1), so that what it has is not
        reclaimed for others while it waits. Digests tell what its text can share, taken here since asking changes
        nothing.
        """
        if self.share:
            self._digest(sequence)
        owner = self.owners.get(owner_of(sequence))
        for chunk in filter(None, owner.chunks if owner is not None else ()):
            self.tiers.touch(chunk, sequence.request.arrival_s)

    def _digest(self, sequence: Sequence) -> list[bytes]:
        """Take the digests of a text up to the end of each whole chunk of it, as far as they are not known."""
        digests = self._digests.setdefault(sequence.id, [])
        for start in range(len(digests) * self.size, len(sequence) - self.size + 1, self.size):
            text = ",".join(map(str, sequence.tokens[start : start + self.size]))
            before = digests[-1] if digests else b""
            digests.append(blake2b(before + text.encode(), digest_size=16).digest())
        return digests

    def _spans(self, chunks: list[Chunk | None], end: int) -> tuple[Span, ...]:
        """The tokens before `end` whose KV is in none of these chunks, in spans as long as possible.

        >>> # chunks of 4, end 10: [None, 4 tokens, 2 tokens] miss [0, 4); [4 tokens, None, None] miss [4, 10)
        """
        spans: list[Span] = []
        reached = 0
        for i, chunk in enumerate(chunks):
            if chunk is not None:
                if reached < i * self.size:
                    spans.append(Span(reached, i * self.size))
                reached = i * self.size + chunk.num_tokens
        return (*spans, Span(reached, end)) if reached < end else tuple(spans)

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """The tokens of a sequence whose KV must be computed: dropped ones, and those behind the end."""
        owner = self.running.get(sequence.request.id)
        if owner is None:
            return self._spans(self.found(sequence), len(sequence))
        tail = Span(owner.end, len(sequence.tokens))
        return (*owner.holes, tail) if owner.holes else (tail,)

    # --- admitted, running, ended

    def begin(self, sequence: Sequence, chunks: list[Chunk | None]) -> None:
        """Admit a sequence: what it has `found` stays in memory."""
        name = owner_of(sequence)
        owner = self.owners.setdefault(name, Owner(name))
        if chunks and (last := chunks[-1]) is not None:  # it may be shared
            owner.end = max(owner.end, (len(chunks) - 1) * self.size + last.num_tokens)
        owner.chunks += [None] * (len(chunks) - len(owner.chunks))
        for chunk in filter(None, chunks):
            if owner.chunks[chunk.index] is None:
                self._give(owner, chunk)
            self.tiers.use(chunk)
        owner.sequence, owner.holes = sequence, self._spans(chunks, owner.end)
        self.running[sequence.id] = owner

    def _give(self, owner: Owner, chunk: Chunk) -> None:
        owner.chunks[chunk.index : chunk.index + 1] = [chunk]  # behind the last, or where there is none
        owner.num_chunks += 1
        chunk.owners.append(owner)

    def fill(self, sequence: Sequence, growing: bool, now: float, moves: list[Move]) -> Reuse:
        """Bring what an admitted sequence has to the device, take blocks for what it lacks, and promise the rest.

        Returns:
            How many tokens of its text it need not compute, by the tier that they were found on.
        """
        owner = self.running[sequence.id]
        on_device = on_host = 0
        for i, chunk in enumerate(owner.chunks):
            chunk = chunk or self._new(owner, i)
            if chunk.device is not None:
                on_device += chunk.num_tokens
            else:
                on_host += chunk.num_tokens
                self.tiers.fetch(chunk, now, moves)
        owner.pages = None
        length = len(sequence) if growing else sequence.request.max_cached
        self._promise(owner, max(0, self.chunks_of(length) - len(owner.chunks)))
        return Reuse(sequence.id, on_device, on_host)

    def _new(self, owner: Owner, index: int) -> Chunk:
        """A new chunk of a running sequence, without a block."""
        chunk = Chunk(index, users=1)
        self._give(owner, chunk)
        if owner.working:
            self.tiers.work(chunk, 1)
        return chunk

    def _promise(self, owner: Owner, count: int) -> None:
        self.num_promised += count - owner.promised
        owner.promised = count

    def grow(self, owner: Owner, stop: int, now: float, moves: list[Move]) -> None:
        """An admitted sequence is given work that ends with token `stop`: it has blocks for that."""
        if not owner.working:
            owner.working = True
            for chunk in filter(None, owner.chunks):
                self.tiers.work(chunk, 1)
        for index in range(len(owner.chunks), self.chunks_of(stop)):
            self.tiers.fetch(self._new(owner, index), now, moves)
            self._promise(owner, max(0, owner.promised - 1))
            owner.pages = None

    def pages(self, owner: Owner) -> Pages:
        """The block table of an admitted sequence, made anew; it is the same object until it changes."""
        blocks = [chunk.device for chunk in filter(None, owner.chunks) if chunk.device is not None]
        owner.pages = Pages(tuple(blocks), self.size)
        return owner.pages

    def wrote(self, work: Work) -> None:
        """The KV of this work has been written."""
        name, start, stop, _ = work
        owner = self.running[name]
        if start == owner.end == stop - 1 and not owner.holes:  # as in most iterations
            owner.end = stop
            chunk = owner.chunks[start // self.size]
            assert chunk is not None
            self.tiers.wrote_next(chunk)
            if self.share and stop % self.size == 0:
                self._share(owner, chunk)
            return
        owner.end = max(owner.end, stop)
        owner.holes = tuple(
            part
            for a, b in owner.holes
            for part in (Span(a, min(b, start)), Span(max(a, stop), b))
            if part.start < part.stop
        )
        for chunk in filter(None, owner.chunks[start // self.size : self.chunks_of(stop)]):
            if (written := min(stop - chunk.index * self.size, self.size)) > chunk.num_tokens:
                self.tiers.wrote(chunk, written)
                if self.share and written == self.size:
                    self._share(owner, chunk)

    def _share(self, owner: Owner, chunk: Chunk) -> None:
        """A chunk is whole: texts that begin alike may have it, unless they have one already."""
        digests = [] if owner.sequence is None else self._digest(owner.sequence)
        if chunk.index < len(digests):
            chunk.digest = digests[chunk.index]
            self.tiers.alike.setdefault(chunk.digest, chunk)

    def release(self, sequence: Sequence, now: float) -> None:
        """A sequence has ended. Its conversation keeps the KV of its text, if it has one."""
        running = sequence.id in self.running
        owner = self.suspend(sequence, now) if running else self.owners.get(owner_of(sequence))
        self._digests.pop(sequence.id, None)
        keeps = self.keep and sequence.request.conversation is not None
        if owner is not None and owner.sequence is None and not keeps:
            self._forget(owner)

    def suspend(self, sequence: Sequence, now: float) -> Owner:
        """A running sequence is evicted, or has ended: its KV may be reclaimed until it is admitted again."""
        owner = self.running.pop(sequence.id)
        if self.share:
            self._digest(sequence)  # if it is evicted, it waits again, with a longer text
        self._promise(owner, 0)
        owner.end = min(owner.end, len(sequence))
        for chunk in filter(None, owner.chunks):
            if owner.working:
                self.tiers.work(chunk, -1)
            if chunk.num_tokens > (left := max(0, owner.end - chunk.index * self.size)):  # computed beyond the end
                self.tiers.wrote(chunk, left)
        owner.sequence, owner.working, owner.pages, owner.holes = None, False, None, ()
        for chunk in [*filter(None, owner.chunks)]:
            self.tiers.leave(chunk, now)
        del owner.chunks[self.chunks_of(owner.end) :]
        self.forget_empty()
        return owner

    def _forget(self, owner: Owner) -> None:
        """Free what an idle owner has, but for what others share."""
        if self.owners.pop(owner.name, None) is None:
            return
        for chunk in filter(None, owner.chunks):
            chunk.owners.remove(owner)
            if not chunk.owners and not chunk.copying and not chunk.arriving:  # otherwise when it has landed
                self.tiers.drop(chunk)

    def forget_empty(self) -> None:
        """Forget the owners that have no chunk of their own left."""
        for owner in self.tiers.emptied:
            if owner.sequence is None and not self.tiers.has_its_own(owner):  # another may have been forgotten first
                self._forget(owner)
        self.tiers.emptied.clear()

    def check(self) -> None:
        """Raise `LawBroken` unless the books agree with each other and with the tiers."""
        self.tiers.check(self.owners.values())
        if self.num_promised != sum(owner.promised for owner in self.running.values()):
            raise LawBroken("conservation", f"{self.num_promised} promised blocks are counted")
        if self.num_available < 0:
            raise LawBroken("conservation", f"{self.num_promised} blocks are promised, and fewer are available")
