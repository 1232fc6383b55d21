"""Blocks of KV slots and the number of holders of each (Kwon et al., vLLM, SOSP 2023, 4.2 to 4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from minifuse.core.errors import LawBroken


class BlockPool:
    """Blocks [0, num_blocks) of one tier. A block without holders is free.

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
        self.holders = [0] * num_blocks  # of each block, their number
        self.free = list(range(num_blocks - 1, -1, -1))  # the last is taken next

    @property
    def num_free(self) -> int:
        return len(self.free)

    def take(self) -> int:
        """Take a free block. It has one holder."""
        if not self.free:
            raise LawBroken("budget", f"a block was taken, and none of the {self.num_blocks} is free")
        block = self.free.pop()
        self.holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that has one."""
        if not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was shared, and has no holder")
        self.holders[block] += 1

    def give_back(self, block: int) -> None:
        """Remove a holder. A block that has none left is free."""
        if not 0 <= block < self.num_blocks or not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was given back twice, or never handed out")
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)

    def check(self, held: Iterable[int]) -> None:
        """Raise `LawBroken` unless `held` names each block as often as it has holders, and those without are free."""
        count, holders = Counter(held), self.holders
        wrong = [block for block, number in enumerate(holders) if number != count[block]]
        if wrong or count.total() != sum(holders):
            found, right = ({block: numbers[block] for block in wrong} for numbers in (holders, count))
            raise LawBroken("conservation", f"blocks are held by {found} and should be by {right}")
        free = sorted(self.free)
        if free != [block for block, number in enumerate(holders) if not number]:
            raise LawBroken("conservation", f"the free blocks are {free}, and {holders} hold the rest")
