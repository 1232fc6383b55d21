"""A row for each request of a padded batch, in which its whole chain is computed (BatchMaker, 2.2.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.cell_graph import Shape
from minifuse.errors import LawBroken, RequestRefused
from minifuse.layout import StateRows
from minifuse.memory.allocator import RunAllocator
from minifuse.options import NoOptions
from minifuse.place import State
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.stages import register
from minifuse.work import Span

__all__ = ["Rows"]


class _Room:
    def __init__(self, allocator: RunAllocator) -> None:
        self.longest = allocator.longest
        self.num_joining = 0

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if self.num_joining == self.longest:
            text = f"not admitted: a batch has its rows side by side, and the longest free run is {self.longest}"
            return Reason("memory-full", sequence.id, text)
        self.num_joining += 1
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        return None  # its row is its own

    def evict(self, sequence: Sequence) -> None:
        raise LawBroken("conservation", f"{sequence.id} was to be evicted, and its row is its own")


@register
class Rows:
    """One slot for each request, where every node of its chain finds the states of the one before and leaves its own.

    Those admitted together have their rows side by side: a rectangle, one row a request, one column a step. Whoever has
    come to the end of its chain keeps its row, computed on or not, until it leaves.

    >>> # a batch of three chains of 2, 3 and 5 nodes: rows 0..2, five steps, of which 15 - 10 = 5 are idle
    """

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "rows"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})
    Options: ClassVar[type] = NoOptions
    host_capacity = 0

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.rows: dict[str, int] = {}  # sequence -> slot
        self.shapes: dict[str, Shape] = {}

    def check(self, *prompts: Request) -> None:
        """A chain takes one slot, whatever its length."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` if the graph is no chain: a row holds the states of one node."""
        name, graph = sequence.id, sequence.unfolded
        if any(len(sources) > 1 for sources in graph.sources) or any(len(readers) > 1 for readers in graph.readers):
            raise RequestRefused(
                f"Request {name!r} unfolds into a graph that is no chain, and the memory 'rows' holds one state a "
                "request: use graph-merged or cellular, or choose the memory 'states'."
            )
        if len(graph.shape.results) > 1:
            raise RequestRefused(
                f"Request {name!r} unfolds into several chains, and the memory 'rows' holds one state a request: "
                "use graph-merged or cellular, or choose the memory 'states'."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # nodes are no text

    def room(self) -> _Room:
        return _Room(self.allocator)

    def place(self, proposal: Proposal) -> Placement:
        if proposal.evict:
            raise LawBroken("conservation", f"{proposal.evict[0].id} was to be evicted, and its row is its own")
        offset = self._admit(proposal.admit) if proposal.admit else None
        places = []
        for name, node, _, _ in proposal.work:
            if name not in self.rows:
                raise LawBroken("conservation", f"work was proposed for {name}, which was never admitted")
            row, reads = self.rows[name], self.shapes[name].reads[node]
            if len(self.shapes[name].sources[node]) > 1:
                raise LawBroken("ghost", f"node {node} of {name} reads several nodes, and its row holds one state")
            places.append(State((row,) * len(reads), row))
        rows = None
        if offset is not None and proposal.waves:
            newcomers = {newcomer.id for newcomer in proposal.admit}
            if newcomers == {work.sequence for work in proposal.work}:
                rows = StateRows(offset, len(newcomers), len(proposal.waves))
        return Placement(tuple(places), rows, waves=proposal.waves)

    def _admit(self, newcomers: tuple[Sequence, ...]) -> int:
        """Rows side by side, in the order admitted. Returns the first."""
        for newcomer in newcomers:
            if newcomer.id in self.rows:
                raise LawBroken("conservation", f"{newcomer.id} was admitted a second time")
        offset = self.allocator.allocate(len(newcomers))
        if offset is None:
            raise LawBroken("budget", f"{len(newcomers)} were admitted without so many rows side by side")
        for row, newcomer in enumerate(newcomers, start=offset):
            self.rows[newcomer.id], self.shapes[newcomer.id] = row, newcomer.unfolded.shape
        return offset

    def commit(self, plan: Plan, sampled: Collection[str]) -> KVUsage:
        """A row is kept until its sequence is released."""
        return self.usage()

    def release(self, sequence: Sequence) -> None:
        row = self.rows.pop(sequence.id, None)
        if row is not None:
            del self.shapes[sequence.id]
            self.allocator.free(row, 1)

    def usage(self) -> KVUsage:
        return KVUsage(len(self.rows), len(self.rows), self.capacity)

    def check_integrity(self) -> None:
        free = [slot for offset, length in self.allocator.runs for slot in range(offset, offset + length)]
        if sorted([*self.rows.values(), *free]) != list(range(self.capacity)):
            raise LawBroken("conservation", f"{len(self.rows)} rows are owned and {len(free)} free of {self.capacity}")
