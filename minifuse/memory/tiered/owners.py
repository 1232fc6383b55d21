"""Owners of chunks: what each owns, and what its next request can reuse (Pensieve, 3.4.3)."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Move, Span, Work
from minifuse.core.request import Sequence
from minifuse.memory.blocks import BlockBooks
from minifuse.memory.tiered.chunks import Chunk, Owner
from minifuse.memory.tiered.tiers import Tiers


def owner_of(sequence: Sequence) -> str:
    """Return the name of a sequence's owner: its conversation, or the request itself."""
    request = sequence.request
    return f"request {request.id}" if request.conversation is None else f"conversation {request.conversation}"


class Owners:
    """Keeps the chunks of conversations, and of requests that belong to none.

    Args:
        share: whether texts with a common prefix share its chunks.
        keep: whether a conversation keeps its chunks when one of its requests has ended.
    """

    def __init__(self, tiers: Tiers, *, share: bool, keep: bool) -> None:
        self.blocks = BlockBooks(tiers.size)
        self.tiers, self.share, self.keep = tiers, share, keep
        self.owners: dict[str, Owner] = {}
        self.running: dict[str, Owner] = {}  # admitted sequence -> its owner
        self._digests: dict[str, list[bytes]] = {}  # sequence -> digests of its text up to the end of each whole chunk

    @property
    def num_available(self) -> int:
        """Count the device blocks that can be taken or reclaimed and are not promised."""
        return self.tiers.num_available - self.blocks.num_promised

    # --- what a sequence finds

    def _known(self, sequence: Sequence) -> Owner:
        """Return a sequence's owner, or a new one that is not in `owners`."""
        name = owner_of(sequence)
        return self.owners.get(name) or Owner(name)

    def why_not_yet(self, sequence: Sequence) -> str:
        """Return why a newcomer must wait even if there is room, or ""."""
        owner = self._known(sequence)
        if owner.sequence is not None:
            return f"the last request of its conversation, {owner.sequence.id}, is still in memory"
        return "its KV is being moved" if any(chunk.arriving for chunk in owner.chunks.values()) else ""

    def found(self, sequence: Sequence) -> dict[int, Chunk]:
        """Return the chunks that a newcomer owns or can share, in order of index."""
        owner = self._known(sequence)
        if owner.sequence is not None:
            return {}
        if not self.share:
            return owner.chunks
        chunks = dict(owner.chunks)
        whole = (len(sequence) - 1) // self.tiers.size  # the last token must be computed
        for index, digest in enumerate(self._digests.get(sequence.id, [])[:whole]):
            chunk = self.tiers.alike.get(digest)
            if chunk is not None and not chunk.arriving:
                chunks.setdefault(index, chunk)
        return dict(sorted(chunks.items()))

    def receive(self, sequence: Sequence) -> None:
        """Record that a request has arrived: its conversation is active again (T in 3.4.3.1).

        So the conversation's chunks are not the first to be reclaimed while the request waits. The digests by which
        texts share chunks are computed here, because queries such as `found` must change nothing.
        """
        if self.share:
            self._digest(sequence)
        for chunk in self._known(sequence).chunks.values():
            self.tiers.touch(chunk, sequence.request.arrival_s)

    def _digest(self, sequence: Sequence) -> list[bytes]:
        """Return, for each whole chunk, a digest of the text up to the chunk's end."""
        digests = self._digests.setdefault(sequence.id, [])
        for start in range(len(digests) * self.tiers.size, len(sequence) - self.tiers.size + 1, self.tiers.size):
            text = ",".join(map(str, sequence.tokens[start : start + self.tiers.size]))
            before = digests[-1] if digests else b""
            digests.append(blake2b(before + text.encode(), digest_size=16).digest())
        return digests

    def _spans(self, chunks: dict[int, Chunk], end: int) -> tuple[Span, ...]:
        """Return the tokens before `end` whose KV these chunks lack, in maximal spans.

        >>> # chunks of 4, end 10: {1: 4 tokens, 2: 2 tokens} miss [0, 4); {0: 4 tokens} misses [4, 10)
        """
        spans: list[Span] = []
        reached = 0
        for index, chunk in chunks.items():
            if reached < index * self.tiers.size:
                spans.append(Span(reached, index * self.tiers.size))
            reached = index * self.tiers.size + chunk.num_tokens
        return (*spans, Span(reached, end)) if reached < end else tuple(spans)

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """Return the tokens whose KV must be computed: dropped ones, and those not written yet."""
        owner = self.running.get(sequence.request.id)
        if owner is None:
            return self._spans(self.found(sequence), len(sequence))
        tail = Span(owner.end, len(sequence.tokens))
        return (*owner.holes, tail) if owner.holes else (tail,)

    # --- admitted, running, ended

    def begin(self, sequence: Sequence, found: dict[int, Chunk]) -> None:
        """Admit a sequence: use the chunks it has `found`, and add chunks for its holes."""
        owner = self._known(sequence)
        self.owners[owner.name] = self.running[sequence.id] = owner
        for index, chunk in found.items():  # the last one may be another owner's
            owner.end = max(owner.end, index * self.tiers.size + chunk.num_tokens)
        owner.sequence = sequence
        owner.holes = self._spans(found, owner.end)
        own, owner.chunks = owner.chunks, {}
        for index in range(self.blocks.blocks_of(owner.end)):
            if index not in found:
                owner.chunks[index] = Chunk(index, users=1, owners=[owner])
                continue
            chunk = owner.chunks[index] = found[index]
            self.tiers.use(chunk)
            if index not in own:
                chunk.owners.append(owner)

    def fill(self, sequence: Sequence, whole: int, now: float, moves: list[Move]) -> Reuse:
        """Fetch an admitted sequence's chunks to the device, and promise its other blocks.

        Args:
            whole: the total number of the sequence's blocks, fetched or promised.
            moves: receives the swaps that this needs.

        Returns:
            How many tokens need no computation, counted by the tier on which they were found.
        """
        chunks = self.running[sequence.id].chunks.values()
        on_device = sum(chunk.num_tokens for chunk in chunks if chunk.device is not None)
        on_host = sum(chunk.num_tokens for chunk in chunks if chunk.device is None)
        table = tuple([self.tiers.fetch(chunk, now, moves) for chunk in chunks])
        self.blocks.pages[sequence.id] = Pages(table, self.tiers.size)
        self.blocks.promise(sequence.id, whole - len(chunks))
        return Reuse(sequence.id, on_device, on_host)

    def grow(self, name: str, stop: int, now: float, moves: list[Move]) -> None:
        """Take the blocks that an admitted sequence lacks to hold `stop` tokens."""
        owner = self.running[name]
        new = range(len(owner.chunks), self.blocks.blocks_of(stop))
        if new:
            chunks = {index: Chunk(index, users=1, owners=[owner]) for index in new}
            owner.chunks |= chunks
            self.blocks.append(name, [self.tiers.fetch(chunk, now, moves) for chunk in chunks.values()])

    def wrote(self, work: Iterable[Work]) -> None:
        """Record that a plan has written the KV of its work."""
        size = self.tiers.size
        for name, start, stop, _ in work:
            owner = self.running[name]
            if stop > owner.end:
                owner.end = stop
            if owner.holes:
                holes = [Span(stop, hole.stop) if hole.start == start else hole for hole in owner.holes]
                owner.holes = tuple([hole for hole in holes if hole.start < hole.stop])
            for index in range(start // size, (stop - 1) // size + 1):
                chunk = owner.chunks[index]
                written = stop - index * size  # a call of `min` would take longer
                if written > size:
                    written = size
                if written > chunk.num_tokens:
                    self.tiers.wrote(chunk, written)
                    if self.share and written == size:
                        self._share(owner, chunk)

    def _share(self, owner: Owner, chunk: Chunk) -> None:
        """Offer a whole chunk to texts with the same prefix, unless one is offered already."""
        assert owner.sequence is not None
        digests = self._digest(owner.sequence)
        if chunk.index < len(digests):
            chunk.digest = digests[chunk.index]
            self.tiers.alike.setdefault(chunk.digest, chunk)

    def release(self, sequence: Sequence, now: float) -> None:
        """Release a sequence that has ended; its conversation keeps the KV of its text."""
        running = sequence.id in self.running
        owner = self.suspend(sequence, now) if running else self._known(sequence)
        self._digests.pop(sequence.id, None)
        keeps = self.keep and sequence.request.conversation is not None
        if owner.sequence is None and not keeps:
            self._forget(owner)

    def suspend(self, sequence: Sequence, now: float) -> Owner:
        """Stop a running sequence; its KV stays, but may be reclaimed."""
        owner = self.running.pop(sequence.id)
        self.blocks.close(sequence.id)
        if self.share:
            self._digest(sequence)  # an evicted sequence waits again, with a longer text
        owner.sequence = None
        owner.holes = ()
        owner.end = min(owner.end, len(sequence))
        for chunk in [*owner.chunks.values()]:
            if chunk.num_tokens > (
                left := max(0, owner.end - chunk.index * self.tiers.size)
            ):  # computed beyond the end
                self.tiers.wrote(chunk, left)
            self.tiers.leave(chunk, now)
        self.forget_empty()
        return owner

    def _forget(self, owner: Owner) -> None:
        """Drop an owner without a running sequence; free the chunks that no other owner has."""
        if self.owners.pop(owner.name, None) is None:
            return
        for chunk in owner.chunks.values():
            chunk.owners.remove(owner)
            if not chunk.owners and chunk.is_idle:  # otherwise it is freed when its copy completes
                self.tiers.drop(chunk)

    def forget_empty(self) -> None:
        """Drop owners that have no running sequence and no chunk of their own left."""
        for owner in self.tiers.emptied:
            shared = all(len(chunk.owners) > 1 for chunk in owner.chunks.values())  # others keep these chunks
            if owner.sequence is None and shared:
                self._forget(owner)
        self.tiers.emptied.clear()

    def check(self) -> None:
        """Raise `LawBroken` unless the records agree with each other and with the tiers."""
        self.blocks.check(self.num_available)
        self.tiers.check(self.owners.values())
