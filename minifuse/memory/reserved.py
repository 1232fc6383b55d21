"""What is shared by the memories that reserve a sequence's whole extent when it is admitted (Orca; Flover, V-B).

`Contiguous`, `Padded`, `Recompute` and `Slots` differ in where an extent lies and when it is free again. Which tokens
are written, which are missing and what may be committed is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused
from minifuse.memory.fixed import check_proposal
from minifuse.memory.still import NothingAhead
from minifuse.options import NoOptions
from minifuse.place import Extent
from minifuse.plan import Placement, Plan, Proposal
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.stages import Room
from minifuse.work import Span, Work

__all__ = ["ReservedMemory"]


class ReservedMemory(NothingAhead, ABC):
    """Keeps the books of extents reserved at admission. `capacity` is in tokens."""

    kind: ClassVar[str] = "memory"
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]]
    host_capacity = 0  # everything stays on the device

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        self.extents: dict[str, Extent] = {}
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is written
        self.num_written = 0  # the sum of `cached`

    def check(self, *prompts: Request) -> None:
        needed = self._needed(prompts)
        if needed > self.capacity:
            whole = f"{prompts[0].group!r} with its {len(prompts)} prompts" if len(prompts) > 1 else repr(prompts[0].id)
            raise RequestRefused(
                f"Request {whole} may need KV for {needed} tokens and memory holds {self.capacity}: "
                "shorten the prompt, lower max_new_tokens, or raise --kv-memory."
            )

    def _needed(self, prompts: tuple[Request, ...]) -> int:
        """Slots that the prompts of one request may take together."""
        return sum(request.max_cached for request in prompts)

    def receive(self, sequence: Sequence) -> None:
        if sequence.graph is not None:
            raise LawBroken("layout", f"{sequence.id} is a cell graph, and the memory {self.name!r} holds KV of texts")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return (Span(self.cached.get(sequence.request.id, 0), len(sequence.tokens)),)

    @abstractmethod
    def room(self) -> Room: ...

    @abstractmethod
    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Extent]:
        """Take an extent for each newcomer of one proposal, or raise `LawBroken` and take none."""

    @abstractmethod
    def _free(self, sequence_id: str, extent: Extent) -> None:
        """Make an extent free again."""

    @property
    def num_used(self) -> int:
        """Tokens whose KV is written and kept."""
        return self.num_written

    @property
    @abstractmethod
    def num_reserved(self) -> int:
        """Slots set aside."""

    def check_integrity(self) -> None:
        if self.num_written != sum(self.cached.values()):
            raise LawBroken("conservation", f"{self.num_written} tokens are counted as written, not {self.cached}")

    def place(self, proposal: Proposal, now: float) -> Placement:
        return Placement(self._place(proposal))

    def _place(self, proposal: Proposal) -> tuple[Extent, ...]:
        """Admit the newcomers. Returns the extent of each piece of work."""
        check_proposal(proposal, self.extents)
        if proposal.admit:
            self.extents |= self._reserve(proposal.admit)
        extents = self.extents
        return tuple([extents[work.sequence] for work in proposal.work])

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self._written(plan)
        return self.usage()

    def _written(self, plan: Plan) -> None:
        """The plan has written the KV of its work; one that leaves a gap or exceeds a place is refused whole."""
        cached, extents = self.cached, self.extents
        for name, start, stop, _ in plan.work:
            extent = extents.get(name)
            if extent is None:
                raise LawBroken("conservation", f"{name} was computed, and memory has released it")
            if start > cached.get(name, 0) or stop > extent.capacity:
                raise LawBroken("ghost", f"{Work(name, start, stop)} leaves a gap before it or exceeds {extent}")
        for name, _, stop, _ in plan.work:
            self.num_written += stop - cached.get(name, 0)
            cached[name] = stop

    def release(self, sequence: Sequence, now: float) -> None:
        self.num_written -= self.cached.pop(sequence.id, 0)
        extent = self.extents.pop(sequence.id, None)
        if extent is not None:
            self._free(sequence.id, extent)

    def usage(self) -> KVUsage:
        return KVUsage(self.num_used, self.num_reserved, self.capacity)
