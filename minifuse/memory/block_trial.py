"""A trial of memory in blocks: how many are free, and how many each sequence has."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from minifuse.core.plan import Reason
from minifuse.memory.trial import Trial
from minifuse.parsing import number


class BlockTrial(Trial):
    """Counts free blocks, and the blocks that each sequence has and is promised.

    Args:
        size: tokens in a block.
        kept: blocks that growing newcomers leave to running sequences.
    """

    unit: ClassVar[str]  # what a block is called

    def __init__(self, free: int, size: int, kept: int) -> None:
        super().__init__()
        self.free, self.size, self.kept = free, size, kept
        self.whole: dict[str, int] = {}  # sequence -> blocks that it has and is promised, if that has changed

    @abstractmethod
    def held(self, name: str) -> int:
        """Blocks that a sequence on the device has and is promised."""

    def whole_of(self, name: str) -> int:
        """The same in this trial, of a newcomer too."""
        whole = self.whole.get(name)
        return self.held(name) if whole is None else whole

    def claim(self, name: str, needed: int, whole: int, growing: bool) -> Reason | None:
        """Set aside `needed` free blocks for a newcomer that has `whole` in all, or return why not."""
        kept = self.kept if growing else 0
        if needed > self.free - kept:
            need = f"needs {number(needed, self.unit)} of {self.size} KV tokens"
            leave = f" and must leave {kept} to running requests" if kept else ""
            return Reason("memory-full", name, f"not admitted: {need}{leave}, {self._told()}")
        self.free -= needed
        self.whole[name] = whole
        return None

    def extend_to(self, name: str, length: int) -> Reason | None:
        """As `extend`, for a sequence that is to hold so many tokens."""
        whole = self.whole_of(name)
        needed = -(-length // self.size) - whole
        if needed > self.free:
            need = f"needs {number(needed, self.unit)}"
            return Reason("memory-full", name, f"has no room for its next token: {need}, {self._told()}")
        if needed > 0:
            self.free -= needed
            self.whole[name] = whole + needed
        return None

    def _told(self) -> str:
        return "1 is free" if self.free == 1 else f"{self.free} are free"
