"""Blocks of KV slots, handed out one by one; several may hold the same one (Kwon et al., vLLM, SOSP 2023, 4.2-4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from minifuse.errors import LawBroken

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks [0, num_blocks) of one tier. A block is free when nobody holds it.

    >>> pool = BlockPool(3)
    >>> pool.take(), pool.take()
    (0, 1)
    >>> pool.share(0)  # now two hold it
    >>> pool.give_back(0)
    >>> pool.num_free, pool.num_holders(0)
    (1, 1)
    """

    def __init__(self, num_blocks: int) -> None:
        self.holders = [0] * num_blocks  # of each block, how many
        self.free = list(range(num_blocks - 1, -1, -1))  # the next one to be handed out is the last

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
        """A free block, now held by one."""
        if not self.free:
            raise LawBroken("budget", f"a block was taken, and none of the {self.num_blocks} is free")
        block = self.free.pop()
        self.holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holds a block that somebody holds."""
        if not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was shared, and nobody holds it")
        self.holders[block] += 1

    def give_back(self, block: int) -> None:
        """One holder less; the last makes the block free."""
        if not 0 <= block < self.num_blocks or not self.holders[block]:
            raise LawBroken("conservation", f"block {block} was given back twice, or never handed out")
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)

    def check(self, held: Iterable[int]) -> None:
        """Raise `LawBroken` unless `held`, each block as often as somebody holds it, and the free blocks are all."""
        count = Counter(held)
        if [count[block] for block in range(self.num_blocks)] != self.holders:
            raise LawBroken("conservation", f"blocks are held by {self.holders} and should be by {dict(count)}")
        if sorted(self.free) != [block for block, holders in enumerate(self.holders) if not holders]:
            raise LawBroken(
                "conservation", f"the free blocks are {sorted(self.free)}, and {self.holders} hold the rest"
            )
