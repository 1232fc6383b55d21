"""One rectangle of KV for the whole batch, left-padded to the longest prompt (Baton, 2.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from minifuse.errors import LawBroken
from minifuse.layout import Rectangle
from minifuse.memory.fixed import FixedRoom
from minifuse.memory.reserved import ReservedMemory
from minifuse.parsing import number
from minifuse.place import Extent
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.request import Request, Sequence
from minifuse.stages import register

__all__ = ["Padded"]


class _Shape(NamedTuple):
    """A rectangle wide enough for every row: the longest prompt, then the longest answer.

    >>> _Shape(rows=2, longest=5, answer=3).num_tokens
    16
    """

    rows: int = 0
    longest: int = 0  # prompt, in tokens
    answer: int = 0  # tokens of the longest answer that are cached: all but the last

    def with_row(self, request: Request) -> _Shape:
        length = len(request.prompt)
        return _Shape(self.rows + 1, max(self.longest, length), max(self.answer, request.max_cached - length))

    @property
    def width(self) -> int:
        return self.longest + self.answer

    @property
    def num_tokens(self) -> int:
        return self.rows * self.width


class _Room(FixedRoom):
    def __init__(self, capacity: int, running: int) -> None:
        self.capacity = capacity
        self.running = running
        self.shape = _Shape()

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if self.running:
            return Reason(
                "batch-closed",
                sequence.id,
                f"not admitted: the padded batch still holds {number(self.running, 'request')}",
            )
        grown = self.shape.with_row(sequence.request)
        if grown.num_tokens > self.capacity:
            text = f"not admitted: {grown.rows} rows of {grown.width} KV tokens exceed {self.capacity}"
            return Reason("memory-full", sequence.id, text)
        self.shape = grown
        return None


@register
class Padded(ReservedMemory):
    """A rectangle [batch, longest prompt + longest answer], opened with a batch and freed when its last row ends.

    Row r's token t lies in column `longest - len(prompt r) + t`: all prompts end in the same column, and all rows
    advance together. A finished row keeps its place until the batch ends.

    >>> # prompts of 3 and 5 tokens, up to 4 new ones each (the last is never cached): 2 rows of 8
    >>> # row 0: . . a b c 0 1 2      its extent starts at slot 2
    >>> # row 1: a b c d e 0 1 2      its extent starts at slot 8
    """

    name = "padded"
    offers: ClassVar[frozenset[str]] = frozenset({"extents", "rectangle"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.shape = _Shape()
        self.columns = 0  # computed so far, in every row

    def _needed(self, prompts: tuple[Request, ...]) -> int:
        return _shape(prompts).num_tokens

    def room(self) -> _Room:
        return _Room(self.capacity, len(self.extents))

    def place(self, proposal: Proposal, now: float) -> Placement:
        extents = self._place(proposal)
        width = self.shape.width
        placed = list(zip(proposal.work, extents, strict=True))
        start = min([offset % width + work.start for work, (offset, _) in placed])
        stop = max([offset % width + work.stop for work, (offset, _) in placed])
        return Placement(extents, Rectangle(0, self.shape.rows, stride=width, start=start, stop=stop))

    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Extent]:
        shape = _shape(newcomer.request for newcomer in newcomers)
        if self.extents or shape.num_tokens > self.capacity:
            raise LawBroken("budget", f"a batch of {shape} was opened beside {len(self.extents)} rows, or does not fit")
        self.shape = shape
        extents = {}
        for row, newcomer in enumerate(newcomers):
            padding = shape.longest - len(newcomer)
            extents[newcomer.id] = Extent(row * shape.width + padding, newcomer.request.max_cached)
        return extents

    def _written(self, plan: Plan) -> None:
        super()._written(plan)
        width = self.shape.width
        stops = [offset % width + work.stop for work, (offset, _) in zip(plan.work, plan.extents, strict=True)]
        self.columns = max(self.columns, *stops)

    def _free(self, sequence_id: str, extent: Extent) -> None:
        if not self.extents:
            self.shape, self.columns = _Shape(), 0

    @property
    def num_used(self) -> int:
        """Tokens of all rows, padding and finished rows included: KV grows until the batch ends (Baton, Fig. 8)."""
        return self.shape.rows * self.columns

    @property
    def num_reserved(self) -> int:
        return self.shape.num_tokens

    def check_integrity(self) -> None:
        super().check_integrity()
        if self.num_reserved > self.capacity or bool(self.extents) != bool(self.shape.rows):
            raise LawBroken(
                "conservation", f"a rectangle {self.shape} holds {len(self.extents)} sequences in {self.capacity} slots"
            )
        rows = {extent.offset // self.shape.width for extent in self.extents.values()}
        if len(rows) != len(self.extents) or any(row >= self.shape.rows for row in rows):
            raise LawBroken("conservation", "two sequences share a row, or one lies outside the rectangle")
        for name, extent in self.extents.items():
            if extent.offset % self.shape.width + extent.capacity > self.shape.width:
                raise LawBroken("conservation", f"{name} reaches beyond its row")


def _shape(requests: Iterable[Request]) -> _Shape:
    shape = _Shape()
    for request in requests:
        shape = shape.with_row(request)
    return shape
