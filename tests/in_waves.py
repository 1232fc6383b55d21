"""A toy of FluidInfer's memory: more KV than the device holds, attended in waves (FluidInfer, 4.1 and Fig. 8).

All KV is on the host. Memory cuts the work of an iteration into waves, each of sequences whose KV fits into half of the
device, and waves use the two halves in turn: while wave k attends, what wave k - 1 wrote is offloaded from the other
half, and the KV of wave k + 1 is uploaded there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.still import NothingAhead
from minifuse.options import NoOptions
from minifuse.place import Extent
from minifuse.plan import Move, Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.work import Span, Work

TIMES = 4  # as many slots on the host as on the device


class _Room:
    """Finds runs on the host. On the device there is always room: for one more wave."""

    def __init__(self, memory: InWaves) -> None:
        self.host = memory.host.copy()

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        needed = sequence.request.max_cached
        if self.host.allocate(needed) is None:
            return Reason("memory-full", sequence.id, f"not admitted: no {needed} slots of the host are free")
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        return None

    def evict(self, sequence: Sequence) -> None:
        raise LawBroken("conservation", "this memory evicts none")


class InWaves(NothingAhead):
    """A run of slots on the host for each sequence, and on the device two halves, each with one wave at a time.

    >>> # 8 slots in halves of 4. With this iteration's token a has 3, b 2 and c 4: a and b do not fit together.
    >>> #   wave 0, a in slots 0..3   before: upload 2 tokens    after: offload the third
    >>> #   wave 1, b in slots 4..6   before: upload 1 token     after: offload the second
    >>> #   wave 2, c in slots 0..4   before: upload 3 tokens    after: offload the fourth
    """

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "in_waves"
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]] = frozenset({"extents"})
    Options: ClassVar[type] = NoOptions
    host_capacity = 0  # set at birth

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.half = capacity // 2
        self.host_capacity = TIMES * capacity
        self.host = RunAllocator(self.host_capacity)
        self.runs: dict[str, tuple[int, int]] = {}  # of each sequence, on the host: first slot, size
        self.cached: dict[str, int] = {}
        self.here: list[set[str]] = [set(), set()]  # sequences whose KV is also in each half

    def check(self, *prompts: Request) -> None:
        if max(prompt.max_cached for prompt in prompts) > self.half:
            raise RequestRefused(f"Request {prompts[0].id!r} has more KV than half of the device: shorten it.")
        if sum(prompt.max_cached for prompt in prompts) > self.host_capacity:
            raise RequestRefused(f"Request {prompts[0].id!r} has more KV than the host: shorten it.")

    def receive(self, sequence: Sequence) -> None:
        """Nothing more to refuse."""

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return (Span(self.cached.get(sequence.id, 0), len(sequence)),)

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        for sequence in proposal.admit:
            needed = sequence.request.max_cached
            offset = self.host.allocate(needed)
            if offset is None:
                raise LawBroken("budget", f"{sequence.id} was admitted, and the host has no run of {needed} slots")
            self.runs[sequence.id] = offset, needed
            self.cached[sequence.id] = 0
        waves = self.cut(proposal.work)
        self.here = [set(), set()]
        places, moves = [], []
        for number, (start, stop) in enumerate(waves):
            offset = self.half * (number % 2)
            self.here[number % 2] = {work.sequence for work in proposal.work[start:stop]}
            for name, first, end, _ in proposal.work[start:stop]:
                away, _ = self.runs[name]
                if first:
                    moves.append(Move("upload", away, offset, first, "host", moment="before", wave=number))
                new = offset + first, away + first, end - first
                moves.append(Move("offload", *new, target_tier="host", moment="after", wave=number))
                places.append(Extent(offset, end))
                offset += end
        return Placement(tuple(places), None, tuple(moves), waves)

    def cut(self, work: tuple[Work, ...]) -> tuple[Span, ...]:
        """Waves in the order of the work, each with as much as fits into half of the device."""
        waves: list[Span] = []
        start = filled = 0
        for index, item in enumerate(work):
            if filled + item.stop > self.half:
                waves.append(Span(start, index))
                start, filled = index, 0
            filled += item.stop
        return (*waves, Span(start, len(work)))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        for work in plan.work:
            self.cached[work.sequence] = work.stop
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if sequence.id in self.runs:
            self.host.free(*self.runs.pop(sequence.id))
            del self.cached[sequence.id]

    def usage(self) -> KVUsage:
        here = sum(self.cached.get(name, 0) for half in self.here for name in half)
        return KVUsage(here, here, self.capacity, sum(self.cached.values()) - here)

    def check_integrity(self) -> None:
        held = sum(size for _, size in self.runs.values())
        if self.host.num_free != self.host_capacity - held:
            raise LawBroken("conservation", f"{self.runs} are held of {self.host_capacity}, {self.host.num_free} free")
