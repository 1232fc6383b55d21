"""A toy of Pensieve's ahead-of-time swap-out: KV is copied to the host behind everything as it grows (3.4.3).

When memory is short, an evicted sequence costs nothing: what has landed on the host stays there, the rest is computed
again. It comes back layer by layer. The policy is vLLM's; what is swapped, and when, is decided here alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option


@dataclass
class _Kept:
    """The KV of one sequence: on the device, or after an eviction on the host alone."""

    device: list[int] = field(default_factory=list)  # blocks; none: it is not on the device
    host: list[int] = field(default_factory=list)
    cached: int = 0  # leading tokens that are kept where it is
    begun: int = 0  # of them, those whose copy to the host has begun
    landed: int = 0  # and those whose copy has landed


class _Room:
    """Counts blocks: what is free, and what each sequence has."""

    def __init__(self, memory: AheadOfTime) -> None:
        self.memory = memory
        self.free = len(memory.free)
        self.held = {name: len(kept.device) for name, kept in memory.kept.items() if kept.device}

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        assert growing
        return self._take(sequence, 0)

    def extend(self, sequence: Sequence) -> Reason | None:
        return self._take(sequence, self.held[sequence.id])

    def _take(self, sequence: Sequence, held: int) -> Reason | None:
        needed = self.memory.blocks_of(len(sequence)) - held
        if needed > self.free:
            return Reason("memory-full", sequence.id, f"needs {needed} blocks, {self.free} are free")
        self.free -= needed
        self.held[sequence.id] = held + needed
        return None

    def evict(self, sequence: Sequence) -> None:
        kept = self.memory.kept.get(sequence.id)
        busy = [block for block in kept.device if block in self.memory.leaving] if kept else []
        self.free += self.held.pop(sequence.id) - len(busy)  # what is on its way to the host is free when it has landed


class AheadOfTime:
    """Blocks on the device, and a copy of as many as there is room for on the host."""

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "ahead_of_time"
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    evicts: ClassVar[bool] = True
    host_capacity = 0  # set at birth
    layers_in_turn = 1

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(2, "tokens in a block", minimum=1)

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.size: int = (options or self.Options()).block_size
        self.capacity = capacity
        self.num_blocks = capacity // self.size
        self.host_capacity = 2 * self.num_blocks * self.size
        self.free = list(range(self.num_blocks))
        self.host_free = list(range(2 * self.num_blocks))
        self.kept: dict[str, _Kept] = {}
        self.leaving: dict[int, int] = {}  # blocks of the device that are copied from -> number of moves
        self.under_way: dict[Move, tuple[str, int]] = {}  # behind everything -> sequence, tokens landed with it
        self.orphans: set[int] = set()  # blocks of the device given up while they were copied from
        self.host_orphans: dict[str, list[int]] = {}  # blocks of the host, given up while they were copied to
        self.returning: dict[str, list[int]] = {}  # blocks of the host that a plan copies from

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def check(self, *prompts: Request) -> None:
        if sum(self.blocks_of(prompt.max_cached) for prompt in prompts) > self.num_blocks:
            raise RequestRefused(f"Request {prompts[0].id!r} is too long: shorten it.")

    def receive(self, sequence: Sequence) -> None:
        pass

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        kept = self.kept.get(sequence.id)
        return (Span(kept.cached if kept else 0, len(sequence)),)

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        moves: list[Move] = []
        for sequence in proposal.evict:
            self._evict(sequence.id)
        for sequence in proposal.admit:
            moves += self._admit(sequence.id)
        for work in proposal.work:
            table = self.kept[work.sequence].device
            table += [self._take() for _ in range(self.blocks_of(work.stop) - len(table))]
        return Placement(
            tuple(Pages(tuple(self.kept[work.sequence].device), self.size) for work in proposal.work),
            moves=tuple(moves),
        )

    def _take(self) -> int:
        if not self.free:
            raise LawBroken("budget", "no block is free")
        return self.free.pop()

    def _evict(self, name: str) -> None:
        """For free: what has landed is on the host."""
        kept = self.kept.pop(name)
        for block in kept.device:
            self._give_back(block)
        if kept.landed:
            keep = self.blocks_of(kept.landed)
            self._give_up_host(name, kept.host[keep:])
            self.kept[name] = _Kept([], kept.host[:keep], *[kept.landed] * 3)
        else:
            self._give_up_host(name, kept.host)
        self.under_way = {m: ("", 0) if of == name else (of, landed) for m, (of, landed) in self.under_way.items()}

    def _give_back(self, block: int) -> None:
        if block in self.leaving:
            self.orphans.add(block)
        else:
            self.free.append(block)

    def _give_up_host(self, name: str, blocks: list[int]) -> None:
        arriving = {(move.target // self.size) for move in self.under_way}
        self.host_free += [block for block in blocks if block not in arriving]
        if waiting := [block for block in blocks if block in arriving]:
            self.host_orphans.setdefault(name, []).extend(waiting)

    def _admit(self, name: str) -> list[Move]:
        kept = self.kept.setdefault(name, _Kept())
        kept.device = [self._take() for _ in range(self.blocks_of(kept.cached))]
        self.returning[name], kept.host = kept.host, []
        kept.begun = kept.landed = 0
        return self._pieces("swap_in", self.returning[name], kept.device, 0, kept.cached)

    def _pieces(self, kind: Any, sources: list[int], targets: list[int], start: int, stop: int) -> list[Move]:
        """The tokens [start, stop) of a sequence, block by block."""
        moves, size = [], self.size
        while start < stop:
            block, offset = divmod(start, size)
            count = min(size - offset, stop - start)
            ends = sources[block] * size + offset, targets[block] * size + offset
            if kind == "swap_in":
                moves.append(Move(kind, *ends, count, "host", moment="before"))
            else:
                moves.append(Move(kind, *ends, count, target_tier="host", moment="behind"))
            start += count
        return moves

    def ahead(self, now: float) -> tuple[Move, ...]:
        """Copy what has grown, of every sequence on the device, as far as the host has room."""
        found: list[Move] = []
        for name, kept in self.kept.items():
            if not kept.device or name in self.returning:
                continue
            while len(kept.host) < self.blocks_of(kept.cached) and self.host_free:
                kept.host.append(self.host_free.pop())
            stop = min(kept.cached, len(kept.host) * self.size)
            for move in self._pieces("swap_out", kept.device, kept.host, kept.begun, stop):
                kept.begun += move.num_tokens
                self.under_way[move] = name, kept.begun
                block = move.source // self.size
                self.leaving[block] = self.leaving.get(block, 0) + 1
                found.append(move)
        return tuple(found)

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        for move in moves:
            name, tokens = self.under_way.pop(move)
            if name in self.kept:
                self.kept[name].landed = max(self.kept[name].landed, tokens)
            block = move.source // self.size
            self.leaving[block] -= 1
            if not self.leaving[block]:
                del self.leaving[block]
                if block in self.orphans:
                    self.orphans.remove(block)
                    self.free.append(block)
        arriving = {move.target // self.size for move in self.under_way}
        for name, blocks in list(self.host_orphans.items()):
            self.host_free += [block for block in blocks if block not in arriving]
            self.host_orphans[name] = [block for block in blocks if block in arriving]
        return self.usage()

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        for work in plan.work:
            self.kept[work.sequence].cached = work.stop
        for name in plan.admitted:
            self.host_free += self.returning.pop(name, [])
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        kept = self.kept.pop(sequence.id, None)
        if kept is not None:
            for block in kept.device:
                self._give_back(block)
            self._give_up_host(sequence.id, kept.host)
            self.under_way = {m: ("", 0) if of[0] == sequence.id else of for m, of in self.under_way.items()}

    def usage(self) -> KVUsage:
        here = [kept for kept in self.kept.values() if kept.device]
        away = sum(kept.cached for kept in self.kept.values() if not kept.device)
        held = (self.num_blocks - len(self.free)) * self.size
        return KVUsage(sum(kept.cached for kept in here), held, self.capacity, away)

    def check_integrity(self) -> None:
        held = [block for kept in self.kept.values() for block in kept.device]
        if sorted([*held, *self.free, *self.orphans]) != list(range(self.num_blocks)):
            raise LawBroken("conservation", f"{held} are held, {self.free} free, {self.orphans} still copied from")
        blocks = [block for kept in self.kept.values() for block in kept.host]
        blocks += [b for held in (*self.host_orphans.values(), *self.returning.values()) for b in held]
        if sorted([*blocks, *self.host_free]) != list(range(2 * self.num_blocks)):
            raise LawBroken("conservation", f"{blocks} of the host are held, and {self.host_free} are free")
