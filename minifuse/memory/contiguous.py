"""Each sequence's KV in one run of slots, reserved for its longest possible answer (Orca; FluidInfer, section 2)."""

from __future__ import annotations

from typing import Any, ClassVar

from minifuse.errors import LawBroken
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.fixed import RunRoom
from minifuse.memory.reserved import ReservedMemory
from minifuse.place import Extent
from minifuse.request import Sequence
from minifuse.stages import register

__all__ = ["Contiguous"]


@register
class Contiguous(ReservedMemory):
    """One run of slots per request, for its prompt and longest possible answer, from its admission to its end."""

    name = "contiguous"
    offers: ClassVar[frozenset[str]] = frozenset({"extents"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.allocator = RunAllocator(capacity)

    def room(self) -> RunRoom:
        return RunRoom(self.allocator)

    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Extent]:
        extents: dict[str, Extent] = {}
        for newcomer in newcomers:
            size = newcomer.request.max_cached
            offset = self.allocator.allocate(size)
            if offset is None:
                for extent in extents.values():
                    self.allocator.free(*extent)
                raise LawBroken("budget", f"{newcomer.id} was admitted without room for its {size} KV tokens")
            extents[newcomer.id] = Extent(offset, size)
        return extents

    def _free(self, sequence_id: str, extent: Extent) -> None:
        self.allocator.free(extent.offset, extent.capacity)

    @property
    def num_reserved(self) -> int:
        return self.capacity - self.allocator.num_free

    def check_integrity(self) -> None:
        super().check_integrity()
        self.allocator.check(self.extents.values())
