"""Which leading tokens of every sequence have their KV written, for memories in which a sequence has one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from minifuse.errors import LawBroken
from minifuse.memory.still import NothingAhead
from minifuse.options import NoOptions
from minifuse.place import Extent, Runs
from minifuse.plan import Plan
from minifuse.report import KVUsage
from minifuse.request import Sequence
from minifuse.work import Span, Work

__all__ = ["Written"]


class Written(NothingAhead, ABC):
    """Keeps the books of what is written and missing, and refuses what must not be committed. `capacity` is in tokens.

    `extents` says where each admitted sequence lies, which is the business of a subclass.
    """

    kind: ClassVar[str] = "memory"
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]]
    host_capacity = 0  # everything stays on the device
    extents: Mapping[str, Extent | Runs]

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is written
        self.num_written = 0  # the sum of `cached`

    def receive(self, sequence: Sequence) -> None:
        if sequence.graph is not None:
            raise LawBroken("layout", f"{sequence.id} is a cell graph, and the memory {self.name!r} holds KV of texts")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return (Span(self.cached.get(sequence.request.id, 0), len(sequence.tokens)),)

    def check_integrity(self) -> None:
        if self.num_written != sum(self.cached.values()):
            raise LawBroken("conservation", f"{self.num_written} tokens are counted as written, not {self.cached}")

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self._written(plan)
        return self.usage()

    @abstractmethod
    def usage(self) -> KVUsage: ...

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
