"""Stages as a researcher writes them from docs/stages.md: odd beside minifuse's own, and right."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory


class StallFree(QueuePolicy):
    """Single tokens first, and pieces of prompts in what they leave of a budget, which each iteration has."""

    name = "stall-free"
    grows = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        chunk_tokens: int = option(8, "tokens in one iteration, at most", minimum=1, maximum=64)

    @property
    def token_budget(self) -> int | None:
        budget: int = self.options.chunk_tokens
        return budget

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return None


class Lingers(QueuePolicy):
    """Begins with a batch once its first request has waited for a while."""

    name = "lingers"

    @dataclass(frozen=True)
    class Options(QueueOptions):
        linger: float = option(0.5, "how long the first of a batch waits", minimum=0.0, unit="s")
        token_budget: int = option(512, "tokens in one iteration, at most", minimum=1)

    @property
    def token_budget(self) -> int | None:
        budget: int = self.options.token_budget
        return budget

    @property
    def patience(self) -> float:
        seconds: float = self.options.linger
        return seconds

    def _closes(self, now: float) -> float:
        first = next(iter(self.waiting), None)
        return now if first is None else max(now, first.request.arrival_s + self.patience)

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if not self.running and not joining and self._closes(now) > now:
            return Reason("lingers", sequence.id, "not admitted: others may come")
        return None

    def wake_at(self, now: float) -> float | None:
        closes = self._closes(now)
        return closes if closes > now and not self.running else None


@dataclass(eq=False)
class Node:
    """A block of the tree: what a text has behind that of its parent."""

    block: int
    parent: Node | None
    tokens: tuple[int, ...]
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    users: int = 0
    used: int = 0  # by the number of the release
    made: int = 0

    def below(self) -> Iterator[Node]:
        """Yield the nodes below this one, each before its own; without recursion, as trees are deep."""
        ahead = [*reversed(self.children.values())]
        while ahead:
            node = ahead.pop()
            yield node
            ahead += reversed(node.children.values())


class RadixTrial(Trial):
    def __init__(self, memory: Radix) -> None:
        super().__init__()
        self.memory = memory
        self.unused = {node for node in memory.root.below() if not node.users}
        self.taken = 0

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        path = self.memory.found(sequence)
        taken = self.taken + self.memory.num_blocks(sequence.request) - len(path)
        unused = len(self.unused) - sum(node in self.unused for node in path)
        if taken > len(self.memory.free) + unused:
            return Reason("memory-full", sequence.id, "not admitted: too few blocks are free, or of no sequence")
        self.unused.difference_update(path)
        self.taken = taken
        return None


class Radix(Memory):
    """The KV of every text that was served stays in a tree of blocks until its blocks are needed (RadixAttention)."""

    name = "radix"
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})

    @dataclass(frozen=True)
    class Options:
        page: int = option(16, "tokens in a block", minimum=1, maximum=32)
        eviction: str = option("lru", "whose block is taken", choices=("lru", "fifo"))

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.size: int = self.options.page
        if capacity < self.size:
            raise UsageError(f"memory.page is {self.size}, and memory holds {capacity} tokens: lower it.")
        self.free = list(range(capacity // self.size))
        self.capacity = len(self.free) * self.size
        self.root = Node(-1, None, ())
        self.tables: dict[str, list[int]] = {}
        self.paths: dict[str, list[Node]] = {}  # the blocks of the tree that a sequence begins with
        self.cached: dict[str, int] = {}
        self.num_released = 0

    def num_blocks(self, request: Request) -> int:
        return -(-request.max_cached // self.size)

    def found(self, sequence: Sequence) -> list[Node]:
        """The blocks of the tree that have the beginning of a text, all but its last token at most."""
        path = [self.root]
        for start in range(0, len(sequence) - self.size, self.size):
            child = path[-1].children.get(tuple(sequence.tokens[start : start + self.size]))
            if child is None:
                break
            path.append(child)
        return path[1:]

    def check(self, *prompts: Request) -> None:
        if sum(map(self.num_blocks, prompts)) * self.size > self.capacity:
            raise RequestRefused(f"Request {prompts[0].id!r} needs more blocks than there are: shorten it.")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        cached = self.cached.get(sequence.id)
        return (Span(len(self.found(sequence)) * self.size if cached is None else cached, len(sequence)),)

    def room(self) -> RadixTrial:
        return RadixTrial(self)

    def _take(self) -> int:
        if not self.free:
            unused = (node for node in self.root.below() if not node.users and not node.children)
            leaf = min(unused, key=lambda node: node.used if self.options.eviction == "lru" else node.made)
            assert leaf.parent is not None
            self.free.append(leaf.parent.children.pop(leaf.tokens).block)
        return self.free.pop()

    def place(self, proposal: Proposal, now: float) -> Placement:
        settle(proposal, RadixTrial, self.room)
        paths = {sequence.id: self.found(sequence) for sequence in proposal.admit}
        for node in (node for path in paths.values() for node in path):
            node.users += 1
        for sequence in proposal.admit:
            path = self.paths[sequence.id] = paths[sequence.id]
            own = [self._take() for _ in range(self.num_blocks(sequence.request) - len(path))]
            self.tables[sequence.id] = [*(node.block for node in path), *own]
            self.cached[sequence.id] = len(path) * self.size
        places = tuple(Pages(tuple(self.tables[work.sequence]), self.size) for work in proposal.work)
        reused = tuple(Reuse(name, len(path) * self.size, 0) for name, path in paths.items() if path)
        return Placement(places, reused=reused)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.cached |= {work.sequence: work.stop for work in plan.work}
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if sequence.id not in self.tables:
            return
        self.num_released += 1
        table, path, cached = (books.pop(sequence.id) for books in (self.tables, self.paths, self.cached))
        for node in path:
            node.users -= 1
            node.used = self.num_released
        node, stop = path[-1] if path else self.root, cached // self.size
        for i in range(len(path), stop):
            tokens = tuple(sequence.tokens[i * self.size : (i + 1) * self.size])
            new = Node(table[i], node, tokens, made=self.num_released)
            node = node.children.setdefault(tokens, new)
            node.used = self.num_released
            if node is not new:  # another sequence has written the same meanwhile
                self.free.append(table[i])
        self.free += table[stop:]

    def usage(self) -> KVUsage:
        nodes = list(self.root.below())
        pinned = sum(node.users > 0 for node in nodes)
        own = sum(len(table) - len(self.paths[name]) for name, table in self.tables.items())
        written = sum(cached - len(self.paths[name]) * self.size for name, cached in self.cached.items())
        used, reserved = pinned * self.size + written, (pinned + own) * self.size
        return KVUsage(used, reserved, self.capacity, kept=(len(nodes) - pinned) * self.size)

    def check_integrity(self) -> None:
        held = [node.block for node in self.root.below()]
        held += [block for name, table in self.tables.items() for block in table[len(self.paths[name]) :]]
        if sorted(held + self.free) != list(range(self.capacity // self.size)):
            raise LawBroken("conservation", f"{self.free} are free, and {held} are held")
