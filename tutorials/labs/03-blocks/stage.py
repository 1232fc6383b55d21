"""Memory in blocks, whose books are the student's; and a device that keeps books of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.labs.engine import OfStudent
from minifuse.labs.judge import Unmet
from minifuse.labs.submission import Remote, StudentFault
from minifuse.stages import Memory, register
from minifuse.techniques import mix, technique
from minifuse.testing.capacity import count_slots

__all__ = ["ROW", "Device", "Students", "table_of"]

COPIES = list[tuple[int, int]] | None


def table_of(blocks: Remote, name: str, num_blocks: int, least: int = 0) -> list[int]:
    """The student's table of a request: blocks that exist, each once, and `least` of them or more."""
    table: list[int] = blocks("table", name, form=list[int])
    if any(not 0 <= block < num_blocks for block in table) or len({*table}) < len(table):
        raise StudentFault(f"table({name!r}) returned {table}: there are blocks 0 to {num_blocks - 1}, each used once.")
    if len(table) < least:
        raise StudentFault(f"table({name!r}) returned {table}: its tokens take {least} blocks.")
    return table


class Device:
    """Slots with contents: what a test writes and copies, and whether it is still there."""

    def __init__(self, work: Any, num_blocks: int, size: int) -> None:
        self.work, self.blocks = work, work.make("Blocks", num_blocks, size)
        self.num_blocks, self.size = num_blocks, size
        self.steps = 0  # of the last write
        self.slots: list[int | None] = [None] * (num_blocks * size)
        self.tokens: dict[str, list[int]] = {}
        self.filled: dict[str, int] = {}
        self.log = [f"blocks = Blocks({num_blocks}, {size})"]

    def admit(self, name: str, tokens: list[int]) -> int:
        self.log.append(f"blocks.admit({name!r}, {tokens})")
        shared: int = self.blocks("admit", name, tokens, form=int)
        if not 0 <= shared < len(tokens):
            raise StudentFault(f"admit({name!r}, {tokens}) returned {shared}: at least the last token is not shared.")
        self.tokens[name], self.filled[name] = tokens, shared
        return shared

    def write(self, name: str, stop: int, wrote: bool = True) -> list[list[int]] | None:
        """Write up to `stop` tokens of a text. Returns the copies, or None."""
        start = self.filled[name]
        self.log.append(f"blocks.write({name!r}, {start}, {stop})")
        copies: list[list[int]] | None = self.blocks("write", name, start, stop, form=COPIES)
        self.steps = self.work.steps
        if copies is None:
            return None
        for source, target in copies:
            if not (0 <= source < self.num_blocks and 0 <= target < self.num_blocks):
                raise StudentFault(f"write copies block {source} to {target}: there are 0 to {self.num_blocks - 1}.")
            for i in range(self.size):
                self.slots[target * self.size + i] = self.slots[source * self.size + i]
        table = self.table(name, -(-stop // self.size))
        if wrote:
            for i in range(start, stop):
                self.slots[table[i // self.size] * self.size + i % self.size] = self.tokens[name][i]
            self.filled[name] = stop
            self.log.append(f"blocks.wrote({name!r}, {stop})")
            self.blocks("wrote", name, stop, form=None)
        return copies

    def release(self, name: str) -> None:
        self.log.append(f"blocks.release({name!r})")
        self.blocks("release", name, form=None)
        del self.tokens[name], self.filled[name]

    def table(self, name: str, least: int = 0) -> list[int]:
        return table_of(self.blocks, name, self.num_blocks, least)

    def holders(self, block: int) -> list[str]:
        """Whose tables a block is in."""
        return [name for name in self.tokens if block in self.table(name)]

    @property
    def num_free(self) -> int:
        return self.num_blocks - len({block for name in self.tokens for block in self.table(name)})

    def check(self) -> None:
        """Raise `Unmet` unless all that was written, or is shared, can be read through the tables."""
        for name, text in self.tokens.items():
            count = self.filled[name]
            table = self.table(name, -(-count // self.size))
            found = [self.slots[table[i // self.size] * self.size + i % self.size] for i in range(count)]
            if found != text[:count]:
                raise Unmet(
                    f"through the table {table} of {name} its first {count} tokens are {found}, and should be "
                    f"{text[:count]}.",
                    self.log,
                )


class Room:
    """A trial: a copy of the student's books."""

    def __init__(self, memory: Students) -> None:
        self.memory, self.evicts = memory, False

    @cached_property
    def blocks(self) -> Remote:
        return self.memory.blocks.copy()

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        shared = self.blocks("admit", sequence.id, sequence.tokens, form=int)
        if self.evicts and shared < self.memory.blocks("shared", sequence.tokens, form=int):
            self.blocks("release", sequence.id, form=None)
            return Reason("shares", sequence.id, "not admitted: it shares what would be evicted for it")
        stop = len(sequence) if growing else sequence.request.max_cached
        if self.blocks("write", sequence.id, shared, stop, form=COPIES) is None:
            self.blocks("release", sequence.id, form=None)
            return Reason("memory-full", sequence.id, "not admitted: too few blocks are free")
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        start, own, pages = self.memory.cached[sequence.id], sequence.id, self.memory.pages
        first = start // self.memory.size
        if len(sequence) <= pages[own].capacity and not any(
            name != own and pages[own].blocks[first] in other.blocks for name, other in pages.items()
        ):
            return None  # as in most iterations
        if self.blocks("write", sequence.id, start, len(sequence), form=COPIES) is None:
            return Reason("memory-full", sequence.id, "has no room for its next token: too few blocks are free")
        return None

    def evict(self, sequence: Sequence) -> None:
        self.evicts = True
        self.blocks("release", sequence.id, form=None)


@register
class Students(OfStudent, Memory):
    """Asks the student's `Blocks` for every block. What is evicted is dropped, and computed again."""

    name, evicts, offers = "lab-blocks", True, frozenset({"pages"})

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(4, "tokens in a block", minimum=1)

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.size: int = self.options.block_size
        self.capacity, self.num_blocks = capacity, capacity // self.size
        self.blocks = self.work.make("Blocks", self.num_blocks, self.size)
        self.cached: dict[str, int] = {}
        self.pages: dict[str, Pages] = {}

    def check(self, *prompts: Request) -> None:
        if sum(-(-request.max_cached // self.size) for request in prompts) > self.num_blocks:
            raise RequestRefused(f"Request {prompts[0].id!r} may need more than {self.num_blocks} blocks.")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        cached = self.cached.get(sequence.id)
        if cached is None:
            cached = self.blocks("shared", sequence.tokens, form=int)
            if not 0 <= cached < len(sequence):
                raise StudentFault(f"shared({sequence.tokens}) returned {cached}: the last token is never shared.")
        return (Span(cached, len(sequence)),)

    def room(self) -> Room:
        return Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        blocks, cached = self.blocks, dict(self.cached)
        moves, reused = list[Move](), list[Reuse]()

        def write(name: str, stop: int) -> None:
            start = cached[name]
            copies = blocks("write", name, start, stop, form=COPIES)
            if copies is None:
                raise LawBroken("budget", f"write({name!r}, {start}, {stop}) returned None, and did not in a trial")
            for source, target in copies:
                if kept := start % self.size:
                    moves.append(Move("copy", source * self.size, target * self.size, kept))

        for sequence in proposal.evict:
            blocks("release", sequence.id, form=None)
            del cached[sequence.id]
        for sequence in proposal.admit:
            cached[sequence.id] = shared = blocks("admit", sequence.id, sequence.tokens, form=int)
            write(sequence.id, len(sequence) if proposal.growing else sequence.request.max_cached)
            if shared:
                reused.append(Reuse(sequence.id, shared, 0))
        newcomers = {sequence.id for sequence in proposal.admit}
        for item in proposal.work:
            if item.sequence not in newcomers:
                write(item.sequence, item.stop)
        pages = {name: table for name, table in self.pages.items() if name in cached}
        for item in proposal.work:
            table = table_of(blocks, item.sequence, self.num_blocks, -(-item.stop // self.size))
            pages[item.sequence] = Pages(tuple(table), self.size)
        self.cached, self.pages = cached, pages
        return Placement(tuple(pages[item.sequence] for item in proposal.work), None, tuple(moves), (), tuple(reused))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        for item in plan.work:
            self.cached[item.sequence] = item.stop
            self.blocks("wrote", item.sequence, item.stop, form=None)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if self.cached.pop(sequence.id, None) is not None:
            self.blocks("release", sequence.id, form=None)
            del self.pages[sequence.id]

    def usage(self) -> KVUsage:
        written = {slot for name, pages in self.pages.items() for slot in pages.slots(0, self.cached[name])}
        held = {block for pages in self.pages.values() for block in pages.blocks}
        return KVUsage(len(written), len(held) * self.size, self.capacity)

    def check_integrity(self) -> None:
        """The laws look at the places."""


@count_slots("lab-blocks")
def _slots(sequences: tuple[Sequence, ...], options: Any) -> int:
    return sum(-(-one.request.max_cached // options.block_size) * options.block_size for one in sequences)


ROW = mix(technique("vllm"), memory="lab-blocks")
