"""The pool of blocks against the plainest model there is: a count of the holders of each block."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from helpers import breach
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minifuse.core.errors import LawBroken
from minifuse.memory.blocks import BlockPool


class BlocksAgainstACount(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(0, 6))
    def begin(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.pool = BlockPool(num_blocks)
        self.held: Counter[int] = Counter()

    @rule()
    def take(self) -> None:
        free = set(range(self.num_blocks)) - set(self.held)
        if not free:
            with breach("budget", f"none of the {self.num_blocks} is free"):
                self.pool.take()
            return
        block = self.pool.take()
        assert block in free
        self.held[block] = 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.share(block)
        self.held[block] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.give_back(block)
        self.held[block] -= 1
        self.held += Counter()  # drop the blocks without a holder

    @rule(block=st.integers(-2, 7))
    def touch_a_block_without_a_holder(self, block: int) -> None:
        if block in self.held:
            return
        with pytest.raises(LawBroken, match=f"block {block} was given back twice, or never handed out") as error:
            self.pool.give_back(block)
        assert error.value.law == "conservation"
        if 0 <= block < self.num_blocks:
            with breach("conservation", f"block {block} was shared, and has no holder"):
                self.pool.share(block)

    @invariant()
    def holders_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert [*pool.holders] == [self.held[block] for block in range(self.num_blocks)]
        assert pool.num_free == self.num_blocks - len(self.held)
        pool.check(self.held.elements())


TestBlocksAgainstACount = BlocksAgainstACount.TestCase
TestBlocksAgainstACount.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


def test_the_lowest_block_is_taken_first_and_the_last_given_back_next() -> None:
    pool = BlockPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    pool.give_back(2)
    pool.give_back(0)
    assert (pool.take(), pool.take()) == (0, 2)


@pytest.mark.parametrize("held", [[0, 1], [0, 0, 2], [0, 0, 1, 2], [0, 0, 1, 1]], ids=str)
def test_check_counts_the_holders_of_each_block(held: list[int]) -> None:
    pool = BlockPool(3)
    pool.take()
    pool.take()
    pool.share(0)
    pool.check([0, 1, 0])
    with breach("conservation", "blocks are held by"):
        pool.check(held)


@pytest.mark.parametrize("free", [[], [1], [2, 2], [2, 3]], ids=str)
def test_check_counts_every_other_block_as_free_once(free: list[int]) -> None:
    pool = BlockPool(3)
    pool.take()
    pool.take()
    pool.check([0, 1])
    pool.free[:] = free
    with breach("conservation", "the free blocks are"):
        pool.check([0, 1])
