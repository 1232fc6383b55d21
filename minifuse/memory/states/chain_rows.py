"""A padded batch of chains: one row of states for each request (BatchMaker, 2.2.3)."""

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.core.cell_graph import Topology
from minifuse.core.errors import RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Placement, Plan, Proposal, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import unfolded
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.slots.slots import SlotTrial
from minifuse.memory.trial import settle
from minifuse.stages import Memory


class ChainRows(Memory):
    """Gives each request one slot, which every node of its chain reads and overwrites.

    Requests admitted together have adjacent rows: a rectangle of one row per request and one column per step. A request
    whose chain has ended keeps its row until it is released, whether or not the row is still computed.

    >>> # a batch of three chains of 2, 3 and 5 nodes: rows 0..2, five steps; 15 - 10 = 5 of the 15 cells are idle
    """

    name = "rows"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.rows: dict[str, tuple[int, Topology]] = {}  # sequence -> slot, and its chain

    def check(self, *prompts: Request) -> None:
        """Refuse nothing: a chain takes one slot, whatever its length."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` unless the graph is a chain: a row holds one state."""
        topology = unfolded(sequence).topology
        if any(len(nodes) > 1 for nodes in (*topology.sources, *topology.readers, topology.results)):
            raise RequestRefused(
                f"Request {sequence.id!r} unfolds into a graph that is no chain, and the memory 'rows' holds one state "
                "a request: use graph-merged or cellular, or choose the memory 'states'."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # a cell graph has no tokens to compute

    def room(self) -> SlotTrial:
        longest = self.allocator.longest
        return SlotTrial(longest, f"a batch has its rows side by side, and the longest free run is {longest}")

    def place(self, proposal: Proposal, now: float) -> Placement:
        settle(proposal, SlotTrial, self.room)
        newcomers = {newcomer.id: unfolded(newcomer).topology for newcomer in proposal.admit}
        shape = None
        if newcomers:
            offset = self.allocator.allocate(len(newcomers))
            assert offset is not None  # the trial has found it
            self.rows |= {name: (row, chain) for row, (name, chain) in enumerate(newcomers.items(), start=offset)}
            if proposal.waves and newcomers.keys() == {work.sequence for work in proposal.work}:
                shape = StateRows(offset, len(newcomers), len(proposal.waves))
        places = []
        for name, node, _, _ in proposal.work:
            row, topology = self.rows[name]
            places.append(State((row,) * len(topology.reads[node]), row))
        return Placement(tuple(places), shape, waves=proposal.waves)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        """Free nothing: a row is kept until its sequence is released."""
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if held := self.rows.pop(sequence.id, None):
            self.allocator.free(held[0], 1)

    def usage(self) -> KVUsage:
        return KVUsage(len(self.rows), len(self.rows), self.capacity)

    def check_integrity(self) -> None:
        self.allocator.check((row, 1) for row, _ in self.rows.values())
