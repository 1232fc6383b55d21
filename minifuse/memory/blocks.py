"""Blocks of KV slots and the number of holders of each (Kwon et al., vLLM, SOSP 2023, 4.2 to 4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from minifuse.errors import LawBroken

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks [0, num_blocks) of one tier. A block without holders is free.

    >>> pool = BlockPool(3)
    >>> pool.take(), pool.take()
    (0, 1)
    >>> pool.share(0)  # now it has two holders
    >>> pool.give_back(0)
    >>> pool.num_free, pool.num_holders(0)
    (1, 1)
    """

    def __init__(self, num_blocks: int) -> None:
        self.holders = [0] * num_blocks  # of each block, their number
        self.free = list(range(num_blocks - 1, -1, -1))  # a stack: the last is taken next

    def copy(self) -> BlockPool:
        twin = BlockPool(0)
        twin.holders, twin.free = list(self.holders), list(self.free)
        return twin

    @property
    def num_blocks(self) -> int:
        return len(self.holders)

    @property
    def num_free(self) -> int:
        return len(self.free)

    def num_holders(self, block: int) -> int:
        return self.holders[block]

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
        count = Counter(held)
        if [count[block] for block in range(self.num_blocks)] != self.holders:
            raise LawBroken("conservation", f"blocks are held by {self.holders} and should be by {dict(count)}")
        if sorted(self.free) != [block for block, holders in enumerate(self.holders) if not holders]:
            raise LawBroken(
                "conservation", f"the free blocks are {sorted(self.free)}, and {self.holders} hold the rest"
            )
