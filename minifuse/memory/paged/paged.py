"""KV in blocks, taken as a sequence grows, and a host tier (vLLM; Pensieve, 3.4.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import UsageError
from minifuse.core.places import Reuse
from minifuse.core.plan import Move, Placement, Plan, Proposal, Reason, Span, spans_from
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.blocks import BlockCount, check_host, check_size
from minifuse.memory.contiguous import too_large
from minifuse.memory.paged.tables import Tables
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory


class PagedTrial(Trial):
    """Counts free blocks, and the holders of each block that sequences share."""

    def __init__(self, tables: Tables, reserve: int) -> None:
        super().__init__()
        self.tables = tables
        self.count = BlockCount(tables.blocks, tables.num_available, "block")
        self.extend = self.count.extend  # type: ignore[method-assign]  # called for every running sequence
        self.kept = reserve if tables.blocks.pages else 0
        self.gone: set[str] = set()  # evicted sequences
        self.alike: dict[str, tuple[str, int]] = {}  # newcomer -> what `Tables.alike` returned
        self.holders: Counter[int] = Counter()  # block -> holders that this trial adds, less those that it removes

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        name, tables = sequence.id, self.tables
        parent, shared = tables.alike(sequence, self.gone)
        if self.gone and shared < tables.alike(sequence)[1]:
            # `missing` has assumed that the sequence with the shared prefix stays.
            text = "not admitted: its beginning is that of a sequence that would be evicted for it"
            return Reason("shares", name, text)
        # A block shared in part is copied, so it counts as needed.
        if full := self.count.claim(sequence, shared // tables.blocks.size, growing, self.kept):
            return full
        self.alike[name] = parent, shared
        if shared:
            self.holders.update(tables.prefix_blocks(parent, shared))
        return None

    def evict(self, sequence: Sequence) -> None:
        self.settled.append(sequence)
        self.gone.add(sequence.id)
        self.count.leave(sequence.id)
        blocks = self.tables.blocks.pages[sequence.id].blocks
        self.holders.subtract(blocks)
        self.count.free += sum(not self.tables.device.holders[block] + self.holders[block] for block in blocks)


class Paged(Memory):
    """Keeps KV in small blocks anywhere in memory, found through each sequence's block table.

    A block is taken when a sequence grows into it, so only a sequence's last block may be partly empty. A policy that
    evicts admits a sequence with only the blocks of its prompt. When memory runs out, the policy evicts a sequence,
    whose KV is swapped to the host, or dropped and computed again. For any other policy, admission sets aside the
    number of blocks that the longest possible answer takes; each block is chosen when it is taken.

    >>> # blocks of 4 slots: a prompt of 6 tokens takes two, and leaves half of the second. The KV of the answer's first
    >>> # two tokens fills it. The KV of the third takes another block, anywhere: Pages(blocks=(0, 1, 5), size=4)
    """

    name = "paged"
    evicts = True
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(16, "tokens in a block", minimum=1)
        preemption: str = option(
            "recompute",
            "what becomes of the KV of an evicted sequence",
            choices=("recompute", "swap"),
            of_evictions=True,
        )
        host: int | None = option(
            None,
            "KV tokens that the host has room for; none: as many as the device",
            minimum=1,
            maximum=10**8,
            of_evictions=True,
        )
        transfer: str = option(
            "blocking",
            "whether swaps hold the iteration up, or each of its layers waits for its own",
            choices=("blocking", "overlapped"),
            of_evictions=True,
        )
        watermark: float = option(
            0.01,
            "part of the blocks that newcomers leave to running sequences, if these may be evicted",
            minimum=0,
            maximum=1,
        )
        share: bool = option(
            False, "let a prompt share the blocks of a common beginning that a running sequence has computed"
        )

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        self.size: int = self.options.block_size
        num_blocks = capacity // self.size
        check_size(num_blocks, capacity, self.size)
        swap = self.options.preemption == "swap"
        if not swap and (self.options.host is not None or self.options.transfer == "overlapped"):
            name = "transfer" if self.options.host is None else "host"
            raise UsageError(
                f"memory.{name} is {getattr(self.options, name)} and memory.preemption is {self.options.preemption}, "
                f"which keeps nothing on the host: give memory.preemption=swap, or leave memory.{name} out."
            )
        num_host = (self.options.host or capacity) // self.size if swap else 0
        if swap:
            check_host(num_host, self.options.host, self.size)
        self.host_capacity = num_host * self.size
        self.tables = Tables(num_blocks, num_host, self.size, share=self.options.share)
        self.watermark = int(self.options.watermark * num_blocks)

    def check(self, *prompts: Request) -> None:
        needed = sum(self.tables.blocks.blocks_of(request.max_cached) for request in prompts)
        have = self.tables.device.num_blocks
        if needed > have:
            raise too_large(prompts, f"{needed} blocks of {self.size} KV tokens", f"memory has {have}")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        name, cached = sequence.request.id, self.tables.cached
        start = cached[name] if name in cached else self.tables.alike(sequence)[1]
        return spans_from(start, len(sequence.tokens))

    def room(self) -> PagedTrial:
        return PagedTrial(self.tables, self.watermark)

    def place(self, proposal: Proposal, now: float) -> Placement:
        trial = settle(proposal, PagedTrial, self.room)
        tables = self.tables
        growing = trial.count.grow(proposal.work)
        moves: list[Move] = []
        reused: list[Reuse] = []
        for sequence in proposal.evict:
            moves += tables.evict(sequence.id)
        for sequence in proposal.admit:
            name = sequence.id
            swapped = name in tables.away
            moves += tables.admit(sequence, trial.count.whole[name], *trial.alike[name])
            if cached := tables.cached[name]:
                reused.append(Reuse(name, 0, cached) if swapped else Reuse(name, cached, 0))
        for name, stop in growing:
            tables.grow(name, stop)
        if self.options.transfer == "overlapped" and any(move.crosses for move in moves):
            # This concerns copies, too: in each layer, a block must be copied before it is overwritten.
            moves = [move._replace(moment="before") for move in moves]
        return Placement(tables.blocks.of(proposal.work), None, tuple(moves), (), tuple(reused))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        tables = self.tables
        tables.wrote(plan.work)
        for name in plan.admitted:
            tables.arrived(name)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        self.tables.release(sequence.id)

    def usage(self) -> KVUsage:
        tables = self.tables
        held = tables.device.num_blocks - tables.num_available
        return KVUsage(tables.num_written, held * self.size, self.capacity, tables.num_away)

    def check_integrity(self) -> None:
        self.tables.check()
