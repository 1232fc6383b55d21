"""Where the states of cell graphs lie: a slot for each node, until all that read it have run (BatchMaker, 2.4.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.cell_graph import CellGraph
from minifuse.errors import LawBroken, RequestRefused
from minifuse.memory.allocator import RunAllocator
from minifuse.options import NoOptions
from minifuse.place import State
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.stages import register
from minifuse.work import Span, Work

__all__ = ["States"]


class _Books:
    """What one sequence has of memory."""

    __slots__ = ("promised", "shape", "slots", "unread")

    def __init__(self, graph: CellGraph) -> None:
        self.shape = graph.shape
        self.promised = graph.most_held
        self.slots: dict[int, int] = {}  # node -> slot: of nodes planned and still needed
        self.unread: dict[int, int] = {}  # node -> how many of those who read it have yet to run


class _Room:
    """Slots promised and taken, by number: where they lie is for `place` to find."""

    def __init__(self, memory: States) -> None:
        self.memory = memory
        self.spare = memory.num_spare
        self.left: dict[str, int] = {}  # of those who were asked about: what they were promised and have not taken
        self.asked: list[Sequence] = []  # for a slot each, while there are enough to spare for all of them

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        self._settle()
        needed = sequence.unfolded.most_held
        if needed > self.spare:
            text = f"not admitted: needs {needed} slots for its states, and {self.spare} are promised to nobody"
            return Reason("memory-full", sequence.id, text)
        self.spare -= needed
        self.left[sequence.id] = needed
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        """Set a slot aside for one more node: beyond what was promised, only as long as nobody else was promised it."""
        self.asked.append(sequence)
        if len(self.asked) <= self.spare:  # whatever was promised to whom: this is the usual case, and must be quick
            return None
        self.asked.pop()
        self._settle()
        return self._take(sequence)

    def _settle(self) -> None:
        """Count whose promises those asked for so far are covered by."""
        asked, self.asked = self.asked, []
        for sequence in asked:
            self._take(sequence)

    def _take(self, sequence: Sequence) -> Reason | None:
        left = self.left.get(sequence.id)
        if left is None:
            books = self.memory.books[sequence.id]
            left = max(0, books.promised - len(books.slots))
        if not left and not self.spare:
            return Reason("memory-full", sequence.id, "not batched: its states so far take all slots it was promised")
        self.spare -= not left
        self.left[sequence.id] = max(0, left - 1)
        return None

    def evict(self, sequence: Sequence) -> None:
        raise LawBroken("conservation", f"{sequence.id} was to be evicted, and its states cannot be")


@register
class States:
    """A slot for the states of each node; those of a batch lie side by side, so that the next need not gather them.

    A slot is taken when its node is planned, and free when all that read it have run. Nodes of one batch get a run of
    slots as long as one is free: then the same requests' next nodes find their inputs side by side. A request is
    promised as many slots as its graph may need at once, and takes more, for several plans in flight, while there are.

    >>> # a batch of three chains, capacity 9: nodes 0 in slots 0..2, nodes 1 read those and go to 3..5; once they have
    >>> # run, 0..2 are free again, and nodes 2 go there
    """

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "states"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    offers: ClassVar[frozenset[str]] = frozenset({"states"})
    Options: ClassVar[type] = NoOptions
    host_capacity = 0

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity  # slots
        self.allocator = RunAllocator(capacity)
        self.books: dict[str, _Books] = {}  # of each sequence
        # By a plan's first piece of work: slots that its own waves were done with, free when it has run.
        self.passing: dict[Work, list[int]] = {}
        self.num_promised = 0  # the sum of promises
        self.num_overdrawn = 0  # slots taken beyond them

    def check(self, *prompts: Request) -> None:
        """Nothing is known before a request has been unfolded: see `receive`."""

    def receive(self, sequence: Sequence) -> None:
        """Raise `RequestRefused` if the states of its graph could not be held even alone."""
        graph = sequence.unfolded
        if graph.most_held > self.capacity:
            raise RequestRefused(
                f"Request {sequence.id!r} may need slots for {graph.most_held} states at once and memory holds "
                f"{self.capacity}: give it a smaller graph, or raise --kv-memory."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return ()  # nodes are no text

    @property
    def num_spare(self) -> int:
        """Slots that nobody was promised and nobody has."""
        return self.capacity - self.num_promised - self.num_overdrawn

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal) -> Placement:
        if proposal.evict:
            raise LawBroken("conservation", f"{proposal.evict[0].id} was to be evicted, and its states cannot be")
        self._admit(proposal.admit)
        waves = proposal.waves or (Span(0, len(proposal.work)),)
        places: list[State] = []
        passing: list[int] = []  # waves run one after the other: what one has read is free for the next
        for start, stop in waves:
            work = proposal.work[start:stop]
            slots = self._take(len(work), passing)
            for (name, node, _, _), slot in zip(work, slots, strict=True):
                books = self.books[name]
                held, shape = books.slots, books.shape
                if node in held:
                    raise LawBroken("conservation", f"node {node} of {name} was planned a second time")
                try:
                    reads = tuple([held[source] for source in shape.reads[node]])
                except KeyError as lost:
                    raise LawBroken("ghost", f"node {node} of {name} reads node {lost}, which is not there") from None
                places.append(State(reads, slot))
                held[node] = slot
                books.unread[node] = len(shape.readers[node])
                if len(held) > books.promised:
                    self.num_overdrawn += 1
            if len(waves) > 1:
                passing += self._read(work)
        if passing:
            self.passing[proposal.work[0]] = passing
        return Placement(tuple(places), waves=proposal.waves)

    def _admit(self, newcomers: tuple[Sequence, ...]) -> None:
        for newcomer in newcomers:
            if newcomer.id in self.books:
                raise LawBroken("conservation", f"{newcomer.id} was admitted a second time")
            self.books[newcomer.id] = books = _Books(newcomer.unfolded)
            self.num_promised += books.promised

    def _drop(self, books: _Books, node: int) -> int:
        """A node's state is no longer needed. Returns its slot, which is the caller's."""
        if len(books.slots) > books.promised:
            self.num_overdrawn -= 1
        del books.unread[node]
        return books.slots.pop(node)

    def _take(self, count: int, passing: list[int]) -> list[int]:
        """Slots for the nodes of one batch, in order: first those of `passing`, and a run where there is one.

        So a plan never has more slots than its requests were promised.
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
        """These nodes have run. Returns the slots of what nobody needs any more."""
        free = []
        for name, node, _, _ in work:
            books = self.books[name]
            unread = books.unread
            for source in books.shape.sources[node]:
                left = unread[source] = unread[source] - 1
                if not left:
                    free.append(self._drop(books, source))
        return free

    def commit(self, plan: Plan, sampled: Collection[str]) -> KVUsage:
        usage = self.usage()  # with what this plan was the last to read
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

    def release(self, sequence: Sequence) -> None:
        books = self.books.pop(sequence.id, None)
        for first in [first for first in self.passing if first.sequence == sequence.id]:
            self._free(self.passing.pop(first))  # its plan was given up
        if books is not None:
            self._free([self._drop(books, node) for node in list(books.slots)])
            self.num_promised -= books.promised

    def usage(self) -> KVUsage:
        used = self.capacity - self.allocator.num_free
        return KVUsage(used, self.num_promised + self.num_overdrawn, self.capacity)

    def check_integrity(self) -> None:
        """Every slot is free or somebody's, and nobody's is another's."""
        owned = [slot for books in self.books.values() for slot in books.slots.values()]
        owned += [slot for slots in self.passing.values() for slot in slots]
        free = [slot for offset, length in self.allocator.runs for slot in range(offset, offset + length)]
        if sorted(owned + free) != list(range(self.capacity)):
            raise LawBroken("conservation", f"{len(owned)} slots are owned and {len(free)} free of {self.capacity}")
        promised = sum(books.promised for books in self.books.values())
        if self.num_promised != promised:
            raise LawBroken("conservation", f"{promised} slots are promised, not {self.num_promised}")
        overdrawn = sum(max(0, len(books.slots) - books.promised) for books in self.books.values())
        if overdrawn != self.num_overdrawn:
            raise LawBroken("conservation", f"{overdrawn} slots are taken beyond promises, not {self.num_overdrawn}")
