"""Runs of slots against the plainest model there is: a set of the free ones."""

from __future__ import annotations

from typing import Any

from helpers import breach
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minifuse.memory.allocator import RunAllocator


class RunsAgainstASet(RuleBasedStateMachine):
    """All that `RunAllocator` returns must follow from the set of free slots."""

    @initialize(capacity=st.integers(0, 24))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.runs = RunAllocator(capacity)
        self.free = set(range(capacity))
        self.taken: list[tuple[int, int]] = []
        self.frozen: list[tuple[RunAllocator, list[tuple[int, int]]]] = []

    def first_fit(self, size: int) -> int | None:
        fitting = (o for o in range(self.capacity) if self.free.issuperset(range(o, o + size)))
        return next(fitting, None)

    @rule(size=st.integers(1, 10))
    def allocate(self, size: int) -> None:
        wanted = self.first_fit(size)
        assert self.runs.allocate(size) == wanted
        if wanted is not None:
            self.free -= set(range(wanted, wanted + size))
            self.taken.append((wanted, size))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        offset, size = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.runs.free(offset, size)
        self.free |= set(range(offset, offset + size))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back_a_part(self, data: Any) -> None:
        index = data.draw(st.integers(0, len(self.taken) - 1))
        offset, size = self.taken[index]
        keep = data.draw(st.integers(0, size - 1))
        self.runs.free(offset + keep, size - keep)
        self.free |= set(range(offset + keep, offset + size))
        self.taken[index : index + 1] = [(offset, keep)] if keep else []

    @rule(offset=st.integers(-3, 26), size=st.integers(1, 8))
    def give_back_what_is_not_taken(self, offset: int, size: int) -> None:
        slots = set(range(offset, offset + size))
        if slots & self.free or not slots <= set(range(self.capacity)):
            before = list(self.runs.runs)
            with breach("conservation", "freed twice or never handed out"):
                self.runs.free(offset, size)
            assert self.runs.runs == before

    @rule()
    def copy(self) -> None:
        twin = self.runs.copy()
        assert (twin.capacity, twin.runs) == (self.runs.capacity, self.runs.runs)
        self.frozen.append((self.runs, list(self.runs.runs)))
        self.runs = twin  # the copy is what goes on; the original must not feel it

    @invariant()
    def says_what_is_free(self) -> None:
        if not hasattr(self, "runs"):
            return
        assert [slot for o, n in self.runs.runs for slot in range(o, o + n)] == sorted(self.free)
        ends = [o + n for o, n in self.runs.runs]
        starts = [o for o, _ in self.runs.runs]
        assert all(end < start for end, start in zip(ends, starts[1:], strict=False)), "neighbours are merged"
        assert self.runs.num_free == len(self.free)
        longest = max((n for n in range(self.capacity + 1) if n == 0 or self.first_fit(n) is not None), default=0)
        assert self.runs.longest == longest
        for original, was in self.frozen:
            assert original.runs == was


TestRunsAgainstASet = RunsAgainstASet.TestCase
TestRunsAgainstASet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
