"""A toy memory that keeps a conversation's KV after each turn, for the next one (Pensieve, 3.4.1, on one tier)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused
from minifuse.memory.still import NothingAhead
from minifuse.options import NoOptions
from minifuse.place import Pages
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.work import Span

SIZE = 2  # slots in a block


def owner_of(sequence: Sequence) -> str:
    """What KV belongs to: a conversation, or a request of its own."""
    conversation = sequence.request.conversation
    return sequence.id if conversation is None else f"conversation {conversation}"


def blocks_of(num_tokens: int) -> int:
    return -(-num_tokens // SIZE)


class Books:
    """Which owner has which blocks, how many tokens of them are written, and which sequence uses them now."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.users: dict[str, str] = {}  # owner -> sequence; an owner without one is kept
        self.promised: dict[str, int] = {}  # owner -> blocks of its longest text that it does not have yet

    def copy(self) -> Books:
        twin = Books(0)
        twin.free, twin.tables = list(self.free), {owner: list(table) for owner, table in self.tables.items()}
        twin.cached, twin.users, twin.promised = dict(self.cached), dict(self.users), dict(self.promised)
        return twin

    @property
    def kept(self) -> list[str]:
        """Owners without a sequence, the one that has been kept for longest first."""
        return [owner for owner in self.tables if owner not in self.users]

    def admit(self, sequence: Sequence, spared: Collection[str]) -> str | None:
        """Take what the longest answer needs beside what is kept, reclaiming the oldest of what others have kept.

        Returns the reason why that is not possible. What is kept for the owners in `spared` is not reclaimed.
        """
        owner = owner_of(sequence)
        if owner in self.users:
            return f"not admitted: its conversation's last turn, {self.users[owner]}, is still in memory"
        needed = blocks_of(sequence.request.max_cached) - len(self.tables.get(owner, ()))
        for other in self.kept:
            if len(self.free) - sum(self.promised.values()) >= needed:
                break
            if other != owner and other not in spared:
                self.free += self.tables.pop(other)
                del self.cached[other]
        if len(self.free) - sum(self.promised.values()) < needed:
            return f"not admitted: needs {needed} blocks"
        self.tables[owner] = self.tables.pop(owner, [])
        self.users[owner] = sequence.id
        self.promised[owner] = needed
        self.cached.setdefault(owner, 0)
        return None


class _Room:
    def __init__(self, books: Books) -> None:
        self.books = books
        self.before = set(books.tables)

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        owner = owner_of(sequence)
        if owner in self.before and owner not in self.books.tables:  # `missing` still counts on what was kept
            return Reason("memory-full", sequence.id, "not admitted: what was kept for it has just been reclaimed")
        why = self.books.admit(sequence, ())
        return None if why is None else Reason("memory-full", sequence.id, why)

    def extend(self, sequence: Sequence) -> Reason | None:
        return None

    def evict(self, sequence: Sequence) -> None:
        raise LawBroken("conservation", "this memory evicts none")


class Keeping(NothingAhead):
    """Blocks that belong to conversations, or to requests without one; those of a conversation outlive its turns."""

    kind: ClassVar[str] = "memory"
    name: ClassVar[str] = "keeping"
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    Options: ClassVar[type] = NoOptions
    host_capacity = 0

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.books = Books(capacity // SIZE)

    def check(self, *prompts: Request) -> None:
        if sum(blocks_of(prompt.max_cached) for prompt in prompts) > self.capacity // SIZE:
            raise RequestRefused(f"Request {prompts[0].id!r} needs more blocks than there are: shorten it.")

    def receive(self, sequence: Sequence) -> None:
        """Nothing more to refuse."""

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        owner = owner_of(sequence)
        mine = self.books.users.get(owner, sequence.id) == sequence.id
        return (Span(min(self.books.cached.get(owner, 0), len(sequence) - 1) if mine else 0, len(sequence)),)

    def room(self) -> _Room:
        return _Room(self.books.copy())

    def place(self, proposal: Proposal, now: float) -> Placement:
        books = self.books.copy()
        for sequence in proposal.admit:
            if (why := books.admit(sequence, ())) is not None:
                raise LawBroken("budget", f"{sequence.id} {why}")
        owners = {user: owner for owner, user in books.users.items()}
        places = []
        for work in proposal.work:
            if work.sequence not in owners:
                raise LawBroken("conservation", f"work was proposed for {work.sequence}, which was never admitted")
            owner = owners[work.sequence]
            table = books.tables[owner]
            while len(table) < blocks_of(work.stop):
                table.append(books.free.pop())
                books.promised[owner] -= 1
            places.append(Pages(tuple(table), SIZE))
        self.books = books
        return Placement(tuple(places))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        owners = {user: owner for owner, user in self.books.users.items()}
        for work in plan.work:
            self.books.cached[owners[work.sequence]] = work.stop
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        books, owner = self.books, owner_of(sequence)
        if books.users.get(owner) != sequence.id:
            return  # it was never admitted
        del books.users[owner], books.promised[owner]
        table, cached = books.tables.pop(owner), min(books.cached.pop(owner), len(sequence))
        kept = blocks_of(cached) if sequence.request.conversation is not None else 0
        books.free += table[kept:]
        if kept:
            books.tables[owner], books.cached[owner] = table[:kept], cached  # the last in the order

    def usage(self) -> KVUsage:
        books = self.books
        held = sum(len(books.tables[owner]) + books.promised[owner] for owner in books.users)
        used = sum(books.cached[owner] for owner in books.users)
        return KVUsage(used, held * SIZE, self.capacity, kept=sum(books.cached[owner] for owner in books.kept))

    def check_integrity(self) -> None:
        held = [block for table in self.books.tables.values() for block in table]
        if sorted(self.books.free + held) != list(range(self.capacity // SIZE)):
            raise LawBroken("conservation", f"the blocks are {self.books.free} and {self.books.tables}")
        if sum(self.books.promised.values()) > len(self.books.free):
            raise LawBroken("conservation", f"{self.books.promised} are promised, of {len(self.books.free)} free")
