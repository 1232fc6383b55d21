"""A row for each request of a padded batch, in which its whole chain is computed (BatchMaker, 2.2.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.core.cell_graph import Topology
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import unfolded
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory

__all__ = ["Rows"]


class RowTrial(Trial):
    """Counts the rows of the longest free run: a batch has adjacent rows."""

    def __init__(self, allocator: RunAllocator) -> None:
        super().__init__()
        self.allocator = allocator
        self.longest: int | None = None  # the longest free run, once it is asked for

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        if self.longest is None:
            self.longest = self.allocator.longest
        if len(self.settled) == self.longest:
            text = f"not admitted: a batch has its rows side by side, and the longest free run is {self.longest}"
            return Reason("memory-full", sequence.id, text)
        return None


class Rows(Memory):
    """One slot for each request: every node of its chain reads the states of the node before there, and writes its own.

    Requests admitted together have adjacent rows: a rectangle, one row a request, one column a step. A request whose
    chain has ended keeps its row until it is released, whether or not the row is still computed.

    >>> # a batch of three chains of 2, 3 and 5 nodes: rows 0..2, five steps, of which 15 - 10 = 5 are idle
    """

    name = "rows"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.rows: dict[str, int] = {}  # sequence -> slot
        self.topologies: dict[str, Topology] = {}

    def check(self, *prompts: Request) -> None:
        """A chain takes one slot, whatever its length."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` if the graph is not a chain: a row holds the states of one node."""
        name, graph = sequence.id, unfolded(sequence)
        if any(len(sources) > 1 for sources in graph.topology.sources) or any(
            len(readers) > 1 for readers in graph.topology.readers
        ):
            raise RequestRefused(
                f"Request {name!r} unfolds into a graph that is no chain, and the memory 'rows' holds one state a "
                "request: use graph-merged or cellular, or choose the memory 'states'."
            )
        if len(graph.topology.results) > 1:
            raise RequestRefused(
                f"Request {name!r} unfolds into several chains, and the memory 'rows' holds one state a request: "
                "use graph-merged or cellular, or choose the memory 'states'."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # a cell graph has no tokens to compute

    def room(self) -> RowTrial:
        return RowTrial(self.allocator)

    def place(self, proposal: Proposal, now: float) -> Placement:
        settle(proposal, RowTrial, self.room)
        offset = self._admit(proposal.admit) if proposal.admit else None
        places = []
        for name, node, _, _ in proposal.work:
            row, reads = self.rows[name], self.topologies[name].reads[node]
            if len(self.topologies[name].sources[node]) > 1:
                raise LawBroken(
                    "ghost", f"node {node} of {name} reads several nodes, and its row holds the states of one"
                )
            places.append(State((row,) * len(reads), row))
        rows = None
        if offset is not None and proposal.waves:
            newcomers = {newcomer.id for newcomer in proposal.admit}
            if newcomers == {work.sequence for work in proposal.work}:
                rows = StateRows(offset, len(newcomers), len(proposal.waves))
        return Placement(tuple(places), rows, waves=proposal.waves)

    def _admit(self, newcomers: tuple[Sequence, ...]) -> int:
        """Take adjacent rows, in the order of admission. Returns the first."""
        offset = self.allocator.allocate(len(newcomers))
        assert offset is not None  # the trial has found it
        for row, newcomer in enumerate(newcomers, start=offset):
            self.rows[newcomer.id], self.topologies[newcomer.id] = row, unfolded(newcomer).topology
        return offset

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        """A row is kept until its sequence is released."""
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        row = self.rows.pop(sequence.id, None)
        if row is not None:
            del self.topologies[sequence.id]
            self.allocator.free(row, 1)

    def usage(self) -> KVUsage:
        return KVUsage(len(self.rows), len(self.rows), self.capacity)

    def check_integrity(self) -> None:
        self.allocator.check((row, 1) for row in self.rows.values())
