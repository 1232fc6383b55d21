"""KV that outlives requests: chunks of conversations on two tiers, or dropped (Pensieve, 3.4.3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import UsageError
from minifuse.core.plan import Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.blocks import BlockCount, check_size
from minifuse.memory.contiguous import too_large
from minifuse.memory.tiered.chunks import Chunk
from minifuse.memory.tiered.eviction import CostAware, Eviction, LeastRecentlyUsed
from minifuse.memory.tiered.owners import Owners
from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.memory.tiered.tiers import Tiers
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory

HOST_TIMES = 4  # the host's room by default, as a multiple of the device's
ROUNDING = 1e-9


class TieredTrial(Trial):
    """Counts the blocks that are free or may be reclaimed.

    Chunks that a newcomer can reuse, on either tier, are reserved for it and no longer available to others.

    Args:
        reserve: number of blocks that newcomers must leave to running sequences, if any run.
    """

    def __init__(self, owners: Owners, reserve: int) -> None:
        super().__init__()
        self.owners, self.reserve = owners, reserve
        self.count = BlockCount(owners.blocks, owners.num_available, "chunk")
        self.extend = self.count.extend  # type: ignore[method-assign]  # asked for every running sequence
        self.kept = reserve if owners.running else 0
        self.found: dict[str, dict[int, Chunk]] = {}  # newcomer -> the chunks it can reuse, by index
        self.claimed: set[Chunk] = set()  # idle chunks reserved for newcomers
        self.left: Counter[Chunk] = Counter()  # chunk -> how many of its users this trial evicts

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        if why := self.owners.why_not_yet(sequence):
            return Reason("not-released", sequence.id, f"not admitted: {why}")
        chunks = self.owners.found(sequence)
        idle = {chunk for chunk in chunks.values() if chunk.users == self.left[chunk] and chunk not in self.claimed}
        # An idle chunk of the device counts as free until the newcomer claims it, unless it is being copied.
        held = sum(chunk not in idle or chunk.copying for chunk in chunks.values())
        if full := self.count.claim(sequence, held, growing, self.kept):
            return full
        self.claimed |= idle
        self.found[sequence.id] = chunks
        self.kept = self.reserve
        return None

    def evict(self, sequence: Sequence) -> None:
        self.settled.append(sequence)
        self.count.leave(sequence.id)
        for chunk in self.owners.running[sequence.id].chunks.values():
            self.left[chunk] += 1
            self.count.free += chunk.users == self.left[chunk] and not chunk.copying


class Tiered(Memory):
    """Keeps KV in chunks of a few tokens; a conversation's chunks outlive its requests.

    When few blocks of the device are available, the chunks of least value are copied to the host ahead of time. A
    copied chunk keeps its block of the device until another chunk needs the block. When the host is full, the chunks of
    least value there are dropped. A request swaps in, layer by layer, the chunks of its conversation that are on the
    host. It computes the dropped chunks together with its new prompt: two spans of queries over one block table. An
    evicted sequence keeps its KV like a conversation between requests: its blocks are taken one by one as they are
    needed. The thesis (3.4.3.5) swaps all of them out at once. While sequences run, newcomers leave a part of the
    blocks free.

    >>> # chunks of 4; of a conversation's 14 tokens, [0, 4) were dropped and [4, 8) lie on the host. A request adds 3
    >>> # tokens: [0, 4) and [14, 17) are computed, and [4, 8) is swapped in
    """

    name = "tiered"
    evicts = True
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    reclaims: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Options:
        chunk: int = option(32, "tokens of a chunk, the unit of eviction and of a block", minimum=1)
        host: int | None = option(
            None,
            f"KV tokens that the host has room for; 0 keeps none there; otherwise {HOST_TIMES} times the device's",
            minimum=0,
            maximum=10**8,
        )
        keep: bool = option(True, "keep the KV of a conversation when a request of it has ended")
        eviction: str = option(
            "cost",
            "which chunks go first: the cheapest to compute for the time they are idle, or the least recently used",
            choices=("cost", "lru"),
        )
        profile: str | None = option(
            None,
            "a file with what a chunk costs; none: what minifuse calibrate measured, or that of the simulated machine",
            offered=True,
        )
        ahead: float = option(
            0.25, "copy chunks to the host while less than this part of the device is available", minimum=0, maximum=1
        )
        reserve: float = option(
            0.1, "part of the device that newcomers leave to running sequences", minimum=0, maximum=1
        )
        transfer: str = option(
            "overlapped",
            "whether each layer waits for its own swaps, or the iteration for all of them",
            choices=("blocking", "overlapped"),
        )
        share: bool = option(False, "let texts that begin alike share the chunks of their beginning")

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        size: int = self.options.chunk
        num_device = capacity // size
        check_size(num_device, capacity, size, "chunk", "chunk")
        host = self.options.host
        num_host = (HOST_TIMES * capacity if host is None else host) // size
        if host and not num_host:
            raise UsageError(f"memory.host is {host}, less than a chunk of {size} tokens: raise it, or give 0.")
        self.host_capacity = num_host * size
        self.threshold, self.reserve = (
            math.ceil(part * num_device - ROUNDING) for part in (self.options.ahead, self.options.reserve)
        )
        self.tiers = Tiers(num_device, num_host, size, self._eviction())
        self.books = Owners(self.tiers, share=self.options.share, keep=self.options.keep)

    def _eviction(self) -> Eviction:
        if self.options.eviction == "lru":
            return LeastRecentlyUsed()
        profile: str | None = self.options.profile
        return CostAware(ASSUMED if profile is None else Profile.read(profile, chunk=self.options.chunk))

    def check(self, *prompts: Request) -> None:
        needed = sum(self.books.blocks.blocks_of(request.max_cached) for request in prompts)
        have = self.tiers.device.num_blocks
        if needed > have:
            raise too_large(prompts, f"{needed} chunks of {self.tiers.size} KV tokens", f"the device has {have}")

    def receive(self, sequence: Sequence) -> None:
        self.books.receive(sequence)

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

    def room(self) -> TieredTrial:
        return TieredTrial(self.books, self.reserve)

    def place(self, proposal: Proposal, now: float) -> Placement:
        trial = settle(proposal, TieredTrial, self.room)
        books = self.books
        growing = trial.count.grow(proposal.work)
        moves: list[Move] = []
        for sequence in proposal.evict:
            books.suspend(sequence, now)
        for sequence in proposal.admit:  # all first, so that no newcomer's chunks are reclaimed for another
            books.begin(sequence, trial.found[sequence.id])
        reused = [books.fill(sequence, trial.count.whole[sequence.id], now, moves) for sequence in proposal.admit]
        for name, stop in growing:
            books.grow(name, stop, now, moves)
        if self.options.transfer == "overlapped":
            moves = [move._replace(moment="before") for move in moves]
        books.forget_empty()
        found = tuple([one for one in reused if one.num_tokens])
        return Placement(books.blocks.of(proposal.work), None, tuple(moves), reused=found)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.tiers.landed(plan.moves)
        self.books.wrote(plan.work)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        self.books.release(sequence, now)

    def ahead(self, now: float) -> tuple[Move, ...]:
        """Copy chunks to the host while few blocks are available (3.4.3.2)."""
        moves = tuple(self.tiers.copy_ahead(self.threshold, self.books.num_available, now))
        self.books.forget_empty()
        return moves

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        self.tiers.landed(moves)
        return self.usage()

    def usage(self) -> KVUsage:
        tiers = self.tiers
        reserved = (tiers.blocks_used + self.books.blocks.num_promised) * tiers.size
        kept = min(tiers.num_kept, self.capacity - reserved)  # promised blocks may be reclaimed from it
        return KVUsage(tiers.num_used, reserved, self.capacity, kept=kept, kept_on_host=tiers.num_kept_on_host)

    def check_integrity(self) -> None:
        self.books.check()
