"""KV in blocks, taken one by one as a sequence grows, and a tier on the host (Kwon et al., vLLM; Pensieve, 3.4.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused, UsageError
from minifuse.memory.still import NothingAhead
from minifuse.memory.tables import NoRoom, Tables
from minifuse.memory.trial import Trial
from minifuse.options import option
from minifuse.plan import Move, Placement, Plan, Proposal, Reason, Reuse
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.stages import register
from minifuse.work import Span, Work

__all__ = ["Paged"]


class _Room:
    def __init__(self, tables: Tables) -> None:
        self.tables = Trial(tables)
        self.pages = tables.pages  # without what is tried out
        self.books = tables
        self.busy = tables.num_on_device > 0
        self.evicts = False

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if self.evicts and self.tables.num_cached(sequence) < self.books.num_cached(sequence):
            # Its work has been counted as if what it shares stayed.
            text = "not admitted: its beginning is that of a sequence that would be evicted for it"
            return Reason("shares", sequence.id, text)
        try:
            self.tables.admit(sequence, growing=growing, busy=self.busy)
        except NoRoom as full:
            return Reason("memory-full", sequence.id, str(full))
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        name, length, tables = sequence.request.id, len(sequence.tokens), self.tables
        pages = self.pages.get(name)
        if pages is not None and length <= len(pages.blocks) * pages.size and not (tables.share or name in tables.left):
            return None  # as in most iterations
        try:
            tables.grow(name, tables.cached[name], length)
        except NoRoom as full:
            return Reason("memory-full", name, str(full))
        return None

    def evict(self, sequence: Sequence) -> None:
        self.evicts = True
        self.tables.evict(sequence.id)


@register
class Paged(NothingAhead):
    """Blocks of a few tokens each, anywhere in memory, found through the sequence's block table.

    A block is taken when a sequence grows into it, so only its last block may be partly empty. A policy that evicts
    admits a sequence with the blocks of its prompt alone, and evicts one when memory runs out: its KV is swapped to the
    host, or dropped and computed again. For any other policy, as many blocks as the longest possible answer takes are
    set aside at admission; which ones is decided as they are taken.

    >>> # blocks of 4 slots: a prompt of 6 tokens takes two, the second half full; the KV of the answer's second token
    >>> # fills it, and that of its third takes another block, anywhere: Pages(blocks=(0, 1, 5), size=4)
    """

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "paged"
    evicts: ClassVar[bool] = True
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    host_capacity: int = 0  # none, unless KV is swapped

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
        if num_blocks < 1:
            raise UsageError(
                f"The memory is to have blocks of {self.size} tokens, and it holds {capacity}: lower memory.block_size "
                "or raise --kv-memory."
            )
        swap = self.options.preemption == "swap"
        if self.options.host is not None and not swap:
            raise UsageError(
                f"memory.host is {self.options.host} and memory.preemption is {self.options.preemption}, which keeps "
                "nothing on the host: give memory.preemption=swap, or leave memory.host out."
            )
        if self.options.transfer == "overlapped" and not swap:
            raise UsageError(
                f"memory.transfer is overlapped and memory.preemption is {self.options.preemption}, which transfers "
                "nothing: give memory.preemption=swap, or leave memory.transfer out."
            )
        num_host = (self.options.host or capacity) // self.size if swap else 0
        if swap and not num_host:
            raise UsageError(
                f"memory.host is {self.options.host}, less than a block of {self.size} tokens: raise it or leave it "
                "out."
            )
        self.host_capacity = num_host * self.size
        self.tables = Tables(
            num_blocks,
            num_host,
            self.size,
            swap=swap,
            share=self.options.share,
            watermark=int(self.options.watermark * num_blocks),
        )

    def check(self, *prompts: Request) -> None:
        needed = sum(self.tables.blocks_of(request.max_cached) for request in prompts)
        have = self.tables.device.num_blocks
        if needed > have:
            whole = f"{prompts[0].group!r} with its {len(prompts)} prompts" if len(prompts) > 1 else repr(prompts[0].id)
            raise RequestRefused(
                f"Request {whole} may need {needed} blocks of {self.size} KV tokens and memory has {have}: shorten the "
                "prompt, lower max_new_tokens, or raise --kv-memory."
            )

    def receive(self, sequence: Sequence) -> None:
        """Nothing more to refuse: a text is received as `check` has seen it."""

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        cached = self.tables.cached.get(sequence.request.id)
        return (Span(self.tables.num_cached(sequence) if cached is None else cached, len(sequence.tokens)),)

    def room(self) -> _Room:
        return _Room(self.tables)

    def place(self, proposal: Proposal, now: float) -> Placement:
        trial = Trial(self.tables)  # a proposal that cannot be placed changes nothing
        moves: list[Move] = []
        reused: list[Reuse] = []
        for sequence in proposal.evict:
            if sequence.id not in trial.pages:
                raise LawBroken("conservation", f"{sequence.id} was to be evicted, and is not on the device")
            moves += trial.evict(sequence.id)
        busy = trial.num_on_device > 0
        try:
            for sequence in proposal.admit:
                if sequence.id in trial.pages:
                    raise LawBroken("conservation", f"{sequence.id} was admitted a second time")
                swapped = sequence.id in trial.away
                moves += trial.admit(sequence, growing=proposal.growing, busy=busy)
                if cached := trial.cached[sequence.id]:
                    reused.append(Reuse(sequence.id, 0 if swapped else cached, cached if swapped else 0))
            for name, start, stop, _ in trial.lacking(proposal.work):
                if name not in trial.pages:
                    raise LawBroken("conservation", f"work was proposed for {name}, which was never admitted")
                moves += trial.grow(name, start, stop)
        except NoRoom as full:
            raise LawBroken("budget", f"the proposal does not fit: {full}") from None
        trial.make()
        if self.options.transfer == "overlapped" and any(move.crosses for move in moves):
            # All of them, copies too: in each layer a block is copied from before it is overwritten.
            moves = [move._replace(moment="before") for move in moves]
        pages = self.tables.pages
        return Placement(tuple([pages[work.sequence] for work in proposal.work]), None, tuple(moves), (), tuple(reused))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        tables = self.tables
        pages, cached = tables.pages, tables.cached
        for name, start, stop, _ in plan.work:
            if name not in pages:
                raise LawBroken("conservation", f"{name} was computed, and memory has released it")
            end = len(pages[name].blocks) * self.size
            if start > cached[name] or stop > end:
                raise LawBroken(
                    "ghost",
                    f"{Work(name, start, stop)} leaves a gap before it or exceeds the {end} tokens of its blocks",
                )
        tables.wrote(plan.work)
        if tables.copied or tables.returned:
            for name in dict.fromkeys((*plan.admitted, *(work.sequence for work in plan.work))):
                tables.arrived(name)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        self.tables.release(sequence.id)

    def usage(self) -> KVUsage:
        tables = self.tables
        held = tables.device.num_blocks - tables.num_available
        return KVUsage(tables.num_written(), held * self.size, self.capacity, tables.num_away)

    def check_integrity(self) -> None:
        self.tables.check()
