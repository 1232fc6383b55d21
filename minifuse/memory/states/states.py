"""Keeps each node's states in a slot until all its readers have run (BatchMaker, 2.4.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

from minifuse.core.cell_graph import Topology
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Placement, Plan, Proposal, Reason, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.unfolded import unfolded
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory


class _Books(NamedTuple):
    """The slots of one sequence."""

    topology: Topology
    promised: int
    slots: dict[int, int]  # node -> slot, for nodes that are planned and still needed
    unread: dict[int, int]  # node -> number of its readers that have not run

    def copy(self) -> _Books:
        return self._replace(slots={**self.slots}, unread={**self.unread})


class StateTrial(Trial):
    """Counts the slots promised to requests, and the spare slots taken beyond promises."""

    def __init__(self, memory: States) -> None:
        super().__init__()
        self.books, self.spare = memory.books, memory.capacity - memory.num_reserved
        self.left: dict[str, int] = {}  # sequence -> promised slots not taken; if negative: spare slots taken

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        needed = unfolded(sequence).most_held
        if needed > self.spare:
            text = f"not admitted: needs {needed} slots for its states, and {self.spare} are left"
            return Reason("memory-full", sequence.id, text)
        self.spare -= needed
        self.left[sequence.id] = needed
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        """Set aside a promised slot for a request's next node, otherwise a spare one."""
        name = sequence.request.id
        left = self.left.get(name)
        if left is None:
            books = self.books[name]
            left = books.promised - len(books.slots)
        if left <= 0:
            if not self.spare:
                return Reason("memory-full", name, "not batched: its states so far take all slots it was promised")
            self.spare -= 1
        self.left[name] = left - 1
        return None


class States(Memory):
    """Gives each node a slot for its states; a batch has adjacent slots where possible.

    A slot is taken when its node is planned, and is free again when all readers of the node have run. Nodes of one
    batch get a run of slots if one is free: then the next nodes of the same requests need not gather their inputs. A
    request is promised as many slots as its graph may need at once. If several of its plans are in flight, it may also
    take spare slots.

    >>> # a batch of three chains, capacity 9: the first nodes take slots 0..2. The second nodes read these, and take
    >>> # 3..5. When the second nodes have run, 0..2 are free again, and the third nodes take them.
    """

    name = "states"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"states"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.books: dict[str, _Books] = {}  # by sequence
        # First piece of work of a plan -> slots whose last reader is in this plan: freed when the plan completes.
        self.passing: dict[Work, list[int]] = {}
        self.num_reserved = 0  # slots that are promised, or taken beyond promises

    def check(self, *prompts: Request) -> None:
        """Refuse nothing: a request is not unfolded yet (see `receive`)."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` if even an empty memory could not hold the states of this graph."""
        graph = unfolded(sequence)
        if graph.most_held > self.capacity:
            raise RequestRefused(
                f"Request {sequence.id!r} may need slots for {graph.most_held} states at once and memory holds "
                f"{self.capacity}: give it a smaller graph, or raise --kv-memory."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # a cell graph has no tokens to compute

    def room(self) -> StateTrial:
        return StateTrial(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        settle(proposal, StateTrial, self.room)
        waves = proposal.waves or (Span(0, len(proposal.work)),)
        allocator, num_reserved, changed = self.allocator, self.num_reserved, dict[str, _Books]()
        if len(waves) > 1:  # a later wave may find no slot: then restore what earlier ones changed
            self.allocator = allocator.copy()
            changed = {name: self.books[name] for name, *_ in proposal.work if name in self.books}
            self.books |= {name: books.copy() for name, books in changed.items()}
        for newcomer in proposal.admit:
            graph = unfolded(newcomer)
            self.books[newcomer.id] = _Books(graph.topology, graph.most_held, {}, {})
            self.num_reserved += graph.most_held
        try:
            places, passing = self._place(proposal.work, waves)
        except LawBroken:
            self.allocator, self.num_reserved = allocator, num_reserved
            self.books |= changed
            for newcomer in proposal.admit:
                del self.books[newcomer.id]
            raise
        if passing:
            self.passing[proposal.work[0]] = passing
        return Placement(tuple(places), waves=proposal.waves)

    def _place(self, nodes: tuple[Work, ...], waves: tuple[Span, ...]) -> tuple[list[State], list[int]]:
        """Give nodes their slots, wave by wave.

        Returns:
            The place of each node, and the slots to free when the plan completes.
        """
        places: list[State] = []
        passing: list[int] = []  # slots whose last reader is in an earlier wave: later waves may take them
        for start, stop in waves:
            work, reads = nodes[start:stop], []
            for name, node, _, _ in work:
                held, topology = self.books[name].slots, self.books[name].topology
                try:
                    reads.append(tuple([held[source] for source in topology.reads[node]]))
                except KeyError as lost:
                    raise LawBroken(
                        "ghost", f"node {node} of {name} reads node {lost}, whose states memory does not hold"
                    ) from None
            slots = self._take(len(work), passing)
            places += [State(read, slot) for read, slot in zip(reads, slots, strict=True)]
            for (name, node, _, _), slot in zip(work, slots, strict=True):
                books = self.books[name]
                books.slots[node] = slot
                books.unread[node] = len(books.topology.readers[node])
                if len(books.slots) > books.promised:
                    self.num_reserved += 1
            if len(waves) > 1:
                passing += self._read(work)
        return places, passing

    def _take(self, count: int, passing: list[int]) -> list[int]:
        """Take `count` slots from `passing`, then from the longest free runs; return them sorted.

        Since `passing` is used first, a plan never takes more slots than its requests were promised.
        """
        passing.sort()
        taken, passing[:] = passing[:count], passing[count:]
        if count - len(taken) > self.allocator.num_free:
            raise LawBroken("budget", f"{count} nodes were proposed with {self.allocator.num_free} slots free")
        while len(taken) < count:
            size = min(count - len(taken), self.allocator.longest)
            offset = self.allocator.allocate(size)
            assert offset is not None
            taken += range(offset, offset + size)
        return sorted(taken)

    def _read(self, work: tuple[Work, ...]) -> list[int]:
        """Record that nodes have read their inputs. Returns the slots without pending readers."""
        free = []
        for name, node, _, _ in work:
            topology, promised, slots, unread = self.books[name]
            for source in topology.sources[node]:
                unread[source] -= 1
                if not unread[source]:
                    if len(slots) > promised:
                        self.num_reserved -= 1
                    del unread[source]
                    free.append(slots.pop(source))
        return free

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        usage = self.usage()  # still counts the slots that are freed next
        self._free(self._read(plan.work) if len(plan.waves) <= 1 else self.passing.pop(plan.work[0], []))
        return usage

    def _free(self, slots: list[int]) -> None:
        slots.sort()
        start = 0
        for i in range(1, len(slots) + 1):
            if i == len(slots) or slots[i] != slots[i - 1] + 1:
                self.allocator.free(slots[start], i - start)
                start = i

    def release(self, sequence: Sequence, now: float) -> None:
        for first in [first for first in self.passing if first.sequence == sequence.id]:
            self._free(self.passing.pop(first))  # its plan will not complete
        if books := self.books.pop(sequence.id, None):
            self.num_reserved -= max(books.promised, len(books.slots))
            self._free([*books.slots.values()])

    def usage(self) -> KVUsage:
        used = self.capacity - self.allocator.num_free
        return KVUsage(used, self.num_reserved, self.capacity)

    def check_integrity(self) -> None:
        """Raise `LawBroken` unless every slot is free or owned once, and the sums are right."""
        owned = [slot for books in self.books.values() for slot in books.slots.values()]
        owned += [slot for slots in self.passing.values() for slot in slots]
        self.allocator.check((slot, 1) for slot in owned)
        reserved = sum(max(books.promised, len(books.slots)) for books in self.books.values())
        if reserved != self.num_reserved:
            raise LawBroken("conservation", f"{reserved} slots are promised or taken beyond, not {self.num_reserved}")
