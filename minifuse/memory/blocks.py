"""Blocks of KV slots: pool, block tables, counts during a trial (vLLM, 4.2 to 4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from minifuse.core.errors import LawBroken, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Reason, Work
from minifuse.core.request import Sequence
from minifuse.io.parsing import number


class BlockPool:
    """Counts each block's holders in one tier. A block without holders is free.

    >>> pool = BlockPool(3)
    >>> pool.take(), pool.take()
    (0, 1)
    >>> pool.share(0)  # now it has two holders
    >>> pool.give_back(0)
    >>> pool.num_free, pool.holders
    (1, [1, 1, 0])
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.holders = [0] * num_blocks  # block -> number of its holders
        self.free = list(range(num_blocks - 1, -1, -1))  # the last is taken next

    @property
    def num_free(self) -> int:
        return len(self.free)

    def take(self) -> int:
        """Take a free block, which then has one holder."""
        if not self.free:
            raise LawBroken("budget", f"a block was taken, and none of the {self.num_blocks} is free")
        block = self.free.pop()
        self.holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that already has at least one."""
        if not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was shared, and has no holder")
        self.holders[block] += 1

    def give_back(self, block: int) -> None:
        """Remove one of a block's holders. A block without holders is free."""
        if not 0 <= block < self.num_blocks or not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was given back twice, or never handed out")
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)

    def check(self, held: Iterable[int]) -> None:
        """Raise `LawBroken` unless `held` lists each block once per holder, and the others are free."""
        found, right = Counter(dict(enumerate(self.holders))), Counter(held)
        if found != right:
            more, fewer = dict(found - right), dict(right - found)
            raise LawBroken("conservation", f"blocks are held by {more} too many, and by {fewer} too few")
        free = sorted(self.free)
        if free != [block for block, holders in enumerate(self.holders) if not holders]:
            raise LawBroken("conservation", f"the free blocks are {free}, and {self.holders} hold the rest")


class BlockBooks:
    """Keeps the block table of each sequence on the device, and counts its promised blocks.

    A changed table is a new object; an unchanged table is the same object in every plan.

    Args:
        size: tokens in a block.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pages: dict[str, Pages] = {}  # sequence -> block table
        self.promised: dict[str, int] = {}  # sequence -> number of blocks set aside for it and not taken yet
        self.num_promised = 0  # the sum of `promised`

    def blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens`: 6 tokens in blocks of 4 take 2."""
        return -(-num_tokens // self.size)

    def of(self, work: Iterable[Work]) -> tuple[Pages, ...]:
        """Return the block table of each piece of work."""
        return tuple([self.pages[item.sequence] for item in work])

    def promise(self, name: str, count: int) -> None:
        """Set aside `count` blocks for a sequence; this replaces an earlier promise."""
        self.num_promised += count - self.promised.get(name, 0)
        self.promised[name] = count

    def append(self, name: str, new: list[int]) -> None:
        """Append blocks to a sequence's table, and subtract their number from its promised blocks."""
        self.pages[name] = Pages((*self.pages[name].blocks, *new), self.size)
        promised = self.promised[name]
        left = promised - len(new) if promised > len(new) else 0
        self.num_promised += left - promised
        self.promised[name] = left

    def close(self, name: str) -> Pages:
        """Drop a sequence's table and promises. Returns the table."""
        self.num_promised -= self.promised.pop(name)
        return self.pages.pop(name)

    def check(self, num_available: int) -> None:
        """Raise `LawBroken` if the sum of promises is wrong, or too many blocks are promised.

        Args:
            num_available: number of blocks that can be taken minus `num_promised`; negative if too many are promised.
        """
        check_sums(num_promised=(self.num_promised, sum(self.promised.values())))
        if num_available < 0:
            raise LawBroken("conservation", f"blocks {self.promised} are promised, {-num_available} too many")


def check_sums(**sums: tuple[int, int]) -> None:
    """Raise `LawBroken` unless each kept sum equals its recount. Each argument is (kept, recounted)."""
    for name, (kept, right) in sums.items():
        if kept != right:
            raise LawBroken("conservation", f"{name} is {kept} and should be {right}")


def check_size(num_blocks: int, capacity: int, size: int, unit: str = "block", option: str = "block_size") -> None:
    """Raise `UsageError` unless memory has room for a block."""
    if num_blocks < 1:
        raise UsageError(
            f"The memory is to have {unit}s of {size} tokens, and it holds {capacity}: lower memory.{option} or raise "
            "--kv-memory."
        )


def check_host(num_blocks: int, host: int | None, size: int) -> None:
    """Raise `UsageError` unless the host has room for a block."""
    if not num_blocks:
        raise UsageError(f"memory.host is {host}, less than a block of {size} tokens: raise it or leave it out.")


class BlockCount:
    """Counts the free blocks, and the blocks of each sequence, during a trial.

    Args:
        free: number of blocks that can be taken and are not promised.
        unit: what messages call a block.
    """

    def __init__(self, books: BlockBooks, free: int, unit: str) -> None:
        self.books, self.free, self.unit = books, free, unit
        self.pages, self.size = books.pages, books.size
        self.whole: dict[str, int] = {}  # sequence -> number of blocks held or promised, if the trial changes it

    def whole_of(self, name: str) -> int:
        """Return how many blocks a sequence holds or is promised, in total."""
        if name in self.whole:
            return self.whole[name]
        return len(self.pages[name].blocks) + self.books.promised[name]

    def claim(self, sequence: Sequence, held: int, growing: bool, kept: int) -> Reason | None:
        """Set aside the blocks that a newcomer lacks, or return why not.

        Args:
            held: number of blocks that the newcomer already holds or shares.
            growing: whether to set aside blocks only for the newcomer's text so far, not for its longest answer.
            kept: number of blocks that a growing newcomer must leave to running sequences.
        """
        whole = self.books.blocks_of(len(sequence) if growing else sequence.request.max_cached)
        needed = whole - held
        kept = kept if growing else 0
        if needed > self.free - kept:
            need = f"needs {number(needed, self.unit)} of {self.size} KV tokens"
            leave = f" and must leave {kept} to running requests" if kept else ""
            return Reason("memory-full", sequence.id, f"not admitted: {need}{leave}, {self._told()}")
        self.free -= needed
        self.whole[sequence.id] = whole
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        """Set aside one more block if a running sequence needs it, or return why not."""
        name, length = sequence.request.id, len(sequence.tokens)
        pages = self.pages.get(name)
        if pages is not None and length <= len(pages.blocks) * self.size:
            return None  # the usual case
        return self.extend_to(name, length)

    def extend_to(self, name: str, length: int) -> Reason | None:
        """Set aside the blocks that a sequence lacks for `length` tokens, or return why not."""
        whole = self.whole_of(name)
        needed = self.books.blocks_of(length) - whole
        if needed > self.free:
            need = f"needs {number(needed, self.unit)}"
            return Reason("memory-full", name, f"has no room for its next token: {need}, {self._told()}")
        if needed > 0:
            self.free -= needed
            self.whole[name] = whole + needed
        return None

    def grow(self, work: Iterable[Work]) -> list[tuple[str, int]]:
        """Set aside the blocks that work lacks. Raise `LawBroken` if there is no room.

        Returns:
            The sequences whose block tables are missing or too short, each with the end of its work.
        """
        pages, size = self.pages, self.size
        growing = [
            (name, stop) for name, _, stop, _ in work if name not in pages or stop > len(pages[name].blocks) * size
        ]
        for name, stop in growing:
            if full := self.extend_to(name, stop):
                raise LawBroken("budget", f"the proposal does not fit: {full}")
        return growing

    def leave(self, name: str) -> None:
        """Free the blocks that a sequence was promised and has not taken."""
        self.free += self.whole_of(name) - len(self.pages[name].blocks)

    def _told(self) -> str:
        return "1 is free" if self.free == 1 else f"{self.free} are free"
