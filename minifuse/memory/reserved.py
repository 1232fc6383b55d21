"""What is shared by the memories that reserve a sequence's whole extent when it is admitted (Orca; Flover, V-B).

`Contiguous`, `Padded`, `Recompute` and `Slots` differ in where an extent lies and when it is free again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from minifuse.errors import RequestRefused
from minifuse.memory.fixed import check_proposal
from minifuse.memory.written import Written
from minifuse.place import Extent
from minifuse.plan import Placement, Proposal
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.stages import Room

__all__ = ["ReservedMemory"]


class ReservedMemory(Written, ABC):
    """Keeps the books of extents reserved at admission."""

    extents: dict[str, Extent]

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.extents = {}

    def check(self, *prompts: Request) -> None:
        needed = self._needed(prompts)
        if needed > self.capacity:
            whole = f"{prompts[0].group!r} with its {len(prompts)} prompts" if len(prompts) > 1 else repr(prompts[0].id)
            raise RequestRefused(
                f"Request {whole} may need KV for {needed} tokens and memory holds {self.capacity}: "
                "shorten the prompt, lower max_new_tokens, or raise --kv-memory."
            )

    def _needed(self, prompts: tuple[Request, ...]) -> int:
        """Slots that the prompts of one request may take together."""
        return sum(request.max_cached for request in prompts)

    @abstractmethod
    def room(self) -> Room: ...

    @abstractmethod
    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Extent]:
        """Take an extent for each newcomer of one proposal, or raise `LawBroken` and take none."""

    @abstractmethod
    def _free(self, sequence_id: str, extent: Extent) -> None:
        """Make an extent free again."""

    @property
    def num_used(self) -> int:
        """Tokens whose KV is written and kept."""
        return self.num_written

    @property
    @abstractmethod
    def num_reserved(self) -> int:
        """Slots set aside."""

    def place(self, proposal: Proposal, now: float) -> Placement:
        return Placement(self._place(proposal))

    def _place(self, proposal: Proposal) -> tuple[Extent, ...]:
        """Admit the newcomers. Returns the extent of each piece of work."""
        check_proposal(proposal, self.extents)
        if proposal.admit:
            self.extents |= self._reserve(proposal.admit)
        extents = self.extents
        return tuple([extents[work.sequence] for work in proposal.work])

    def release(self, sequence: Sequence, now: float) -> None:
        self.num_written -= self.cached.pop(sequence.id, 0)
        extent = self.extents.pop(sequence.id, None)
        if extent is not None:
            self._free(sequence.id, extent)

    def usage(self) -> KVUsage:
        return KVUsage(self.num_used, self.num_reserved, self.capacity)
