"""A slot for the states of each node of a cell graph, until all nodes that read it have run (BatchMaker, 2.4.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.core.cell_graph import CellGraph
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Placement, Plan, Proposal, Reason, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.unfolded import unfolded
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory

__all__ = ["States"]


class _Books:
    """The slots of one sequence."""

    __slots__ = ("promised", "slots", "topology", "unread")

    def __init__(self, graph: CellGraph) -> None:
        self.topology = graph.topology
        self.promised = graph.most_held
        self.slots: dict[int, int] = {}  # node -> slot, of the nodes planned and still needed
        self.unread: dict[int, int] = {}  # node -> number of its readers that have not run


class StateTrial(Trial):
    """Counts the slots that are promised and taken.

    Most iterations need no more slots than are spare. So `extend` only counts, and which slots were promised to which
    sequence is settled when the count exceeds the spare ones, or when a newcomer asks.
    """

    def __init__(self, memory: States) -> None:
        super().__init__()
        self.memory = memory
        self.spare = memory.num_spare
        self.untaken: dict[str, int] = {}  # sequence -> slots promised and not taken, once settled
        self.unsettled: list[Sequence] = []  # extended by a slot each: no more of them than spare slots

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        self._settle()
        needed = unfolded(sequence).most_held
        if needed > self.spare:
            text = f"not admitted: needs {needed} slots for its states, and {self.spare} are left"
            return Reason("memory-full", sequence.id, text)
        self.spare -= needed
        self.untaken[sequence.id] = needed
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        """Set a slot aside for one more node: one promised to this sequence, or one promised to none."""
        self.unsettled.append(sequence)
        if len(self.unsettled) <= self.spare:  # enough even if none was promised: the usual case, which must be quick
            return None
        self.unsettled.pop()
        self._settle()
        return self._take_one(sequence)

    def _settle(self) -> None:
        """Take the unsettled slots from each sequence's promise, and from the spare ones beyond it."""
        unsettled, self.unsettled = self.unsettled, []
        for sequence in unsettled:
            self._take_one(sequence)

    def _take_one(self, sequence: Sequence) -> Reason | None:
        """Take a slot of the sequence's promise, or else a spare one."""
        untaken = self.untaken.get(sequence.id)
        if untaken is None:
            books = self.memory.books[sequence.id]
            untaken = max(0, books.promised - len(books.slots))
        if not untaken and not self.spare:
            return Reason("memory-full", sequence.id, "not batched: its states so far take all slots it was promised")
        self.spare -= not untaken
        self.untaken[sequence.id] = max(0, untaken - 1)
        return None


class States(Memory):
    """A slot for the states of each node; a batch has adjacent slots, so that the next batch need not gather them.

    A slot is taken when its node is planned, and free when all its readers have run. Nodes of one batch get a run of
    slots if one is free: then the next nodes of the same requests find their inputs in adjacent slots. A request is
    promised as many slots as its graph may need at once, and takes spare ones beyond that for several plans in flight.

    >>> # a batch of three chains, capacity 9: nodes 0 in slots 0..2, nodes 1 read those and go to 3..5; once they have
    >>> # run, 0..2 are free again, and nodes 2 go there
    """

    name = "states"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"states"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.books: dict[str, _Books] = {}  # by sequence
        # First piece of work of a plan -> slots that its own waves were the last to read, free when it has run.
        self.passing: dict[Work, list[int]] = {}
        self.num_promised = 0  # the sum of promises
        self.num_overdrawn = 0  # slots taken beyond promises

    def check(self, *prompts: Request) -> None:
        """Nothing is known of a request before it is unfolded: see `receive`."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` if memory could not hold the states of this graph even alone."""
        graph = unfolded(sequence)
        if graph.most_held > self.capacity:
            raise RequestRefused(
                f"Request {sequence.id!r} may need slots for {graph.most_held} states at once and memory holds "
                f"{self.capacity}: give it a smaller graph, or raise --kv-memory."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # a cell graph has no tokens to compute

    @property
    def num_spare(self) -> int:
        """Slots that are neither promised nor taken."""
        return self.capacity - self.num_promised - self.num_overdrawn

    def room(self) -> StateTrial:
        return StateTrial(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        settle(proposal, StateTrial, self.room)
        for newcomer in proposal.admit:
            self.books[newcomer.id] = admitted = _Books(unfolded(newcomer))
            self.num_promised += admitted.promised
        waves = proposal.waves or (Span(0, len(proposal.work)),)
        places: list[State] = []
        passing: list[int] = []  # slots that one wave was the last to read: free for the waves after it
        for start, stop in waves:
            work = proposal.work[start:stop]
            slots = self._take(len(work), passing)
            for (name, node, _, _), slot in zip(work, slots, strict=True):
                books = self.books[name]
                held, topology = books.slots, books.topology
                if node in held:
                    raise LawBroken("conservation", f"node {node} of {name} was planned a second time")
                try:
                    reads = tuple([held[source] for source in topology.reads[node]])
                except KeyError as lost:
                    raise LawBroken(
                        "ghost", f"node {node} of {name} reads node {lost}, whose states memory does not hold"
                    ) from None
                places.append(State(reads, slot))
                held[node] = slot
                books.unread[node] = len(topology.readers[node])
                if len(held) > books.promised:
                    self.num_overdrawn += 1
            if len(waves) > 1:
                passing += self._read(work)
        if passing:
            self.passing[proposal.work[0]] = passing
        return Placement(tuple(places), waves=proposal.waves)

    def _drop(self, books: _Books, node: int) -> int:
        """Remove a node whose states are no longer needed. Returns its slot, for the caller to free."""
        if len(books.slots) > books.promised:
            self.num_overdrawn -= 1
        del books.unread[node]
        return books.slots.pop(node)

    def _take(self, count: int, passing: list[int]) -> list[int]:
        """Take `count` slots, in ascending order: those of `passing` first, then the longest runs needed.

        Since `passing` is used first, a plan never takes more slots than its requests were promised.
        """
        passing.sort()
        taken, passing[:] = passing[:count], passing[count:]
        if count - len(taken) > self.allocator.num_free:
            raise LawBroken("budget", f"{count} nodes were proposed with {self.allocator.num_free} slots free")
        while (size := count - len(taken)) > 0:
            offset = self.allocator.allocate(size)
            if offset is None:
                size = self.allocator.longest
                offset = self.allocator.allocate(size)
                assert offset is not None
            taken += range(offset, offset + size)
        return sorted(taken)

    def _read(self, work: tuple[Work, ...]) -> list[int]:
        """Count the reads of nodes that have run. Returns the slots that have no reader left."""
        free = []
        for name, node, _, _ in work:
            books = self.books[name]
            unread = books.unread
            for source in books.topology.sources[node]:
                remaining = unread[source] = unread[source] - 1
                if not remaining:
                    free.append(self._drop(books, source))
        return free

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        usage = self.usage()  # before the slots that this plan was the last to read are free
        if len(plan.waves) <= 1:
            self._free(self._read(plan.work))
        else:
            self._free(self.passing.pop(plan.work[0], []))
        return usage

    def _free(self, slots: list[int]) -> None:
        slots.sort()
        start = 0
        for i in range(1, len(slots) + 1):
            if i == len(slots) or slots[i] != slots[i - 1] + 1:
                self.allocator.free(slots[start], i - start)
                start = i

    def release(self, sequence: Sequence, now: float) -> None:
        books = self.books.pop(sequence.id, None)
        for first in [first for first in self.passing if first.sequence == sequence.id]:
            self._free(self.passing.pop(first))  # its plan will not complete
        if books is not None:
            self._free([self._drop(books, node) for node in list(books.slots)])
            self.num_promised -= books.promised

    def usage(self) -> KVUsage:
        used = self.capacity - self.allocator.num_free
        return KVUsage(used, self.num_promised + self.num_overdrawn, self.capacity)

    def check_integrity(self) -> None:
        """Raise `LawBroken` unless every slot is free or has one owner, and the counts are those of the books."""
        owned = [slot for books in self.books.values() for slot in books.slots.values()]
        owned += [slot for slots in self.passing.values() for slot in slots]
        self.allocator.check((slot, 1) for slot in owned)
        promised = sum(books.promised for books in self.books.values())
        if self.num_promised != promised:
            raise LawBroken("conservation", f"{promised} slots are promised, not {self.num_promised}")
        overdrawn = sum(max(0, len(books.slots) - books.promised) for books in self.books.values())
        if overdrawn != self.num_overdrawn:
            raise LawBroken("conservation", f"{overdrawn} slots are taken beyond promises, not {self.num_overdrawn}")
