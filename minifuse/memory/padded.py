"""One rectangle of KV for the whole batch, left-padded to the longest prompt (Baton, 2.1)."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Extent, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import Rectangle
from minifuse.io.parsing import number
from minifuse.memory.contiguous import too_large
from minifuse.memory.places import Places
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory


class _Shape(NamedTuple):
    """A rectangle whose rows each have room for the longest prompt and the longest answer.

    >>> _Shape(rows=2, longest=5, answer=3).num_tokens
    16
    """

    rows: int = 0
    longest: int = 0  # tokens of the longest prompt
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


class PaddedTrial(Trial):
    """Gives each newcomer a row of a new rectangle if memory holds no earlier batch."""

    def __init__(self, memory: Padded) -> None:
        super().__init__()
        self.memory, self.shape = memory, _Shape()

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        memory = self.memory
        if num_open := len(memory.books.places):
            text = f"not admitted: the padded batch still holds {number(num_open, 'request')}"
            return Reason("batch-closed", sequence.id, text)
        grown = self.shape.with_row(sequence.request)
        if grown.num_tokens > memory.capacity:
            text = f"not admitted: {grown.rows} rows of {grown.width} KV tokens exceed {memory.capacity}"
            return Reason("memory-full", sequence.id, text)
        self.shape = grown
        return None


class Padded(Memory):
    """Keeps a rectangle [batch, longest prompt + longest answer] until its last row ends.

    Row r's token t lies in column `longest - len(prompt r) + t`: all prompts end in the same column, and all rows
    advance together. A finished row keeps its place until the batch ends.

    >>> # prompts of 3 and 5 tokens, up to 4 new ones each (the last is never cached): 2 rows of 8
    >>> # row 0: . . a b c 0 1 2      its extent starts at slot 2
    >>> # row 1: a b c d e 0 1 2      its extent starts at slot 8
    """

    name = "padded"
    offers: ClassVar[frozenset[str]] = frozenset({"extents", "rectangle"})

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.books = Places[Extent]()
        self.shape = _Shape()
        self.columns = 0  # columns of this rectangle computed so far

    def check(self, *prompts: Request) -> None:
        shape = reduce(_Shape.with_row, prompts, _Shape())
        if shape.num_tokens > self.capacity:
            raise too_large(prompts, f"KV for {shape.num_tokens} tokens", f"memory holds {self.capacity}")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

    def room(self) -> PaddedTrial:
        return PaddedTrial(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        if proposal.admit or proposal.evict:
            self._open(settle(proposal, PaddedTrial, self.room).shape, proposal.admit)
        extents, width = self.books.of(proposal.work), self.shape.width
        placed = list(zip(proposal.work, extents, strict=True))
        start = min([offset % width + work.start for work, (offset, _) in placed])
        stop = max([offset % width + work.stop for work, (offset, _) in placed])
        return Placement(extents, Rectangle(0, self.shape.rows, width, start, stop))

    def _open(self, shape: _Shape, newcomers: tuple[Sequence, ...]) -> None:
        """Give each newcomer a row of a new rectangle."""
        self.shape = shape
        for row, newcomer in enumerate(newcomers):
            padding = shape.longest - len(newcomer)
            self.books.places[newcomer.id] = Extent(row * shape.width + padding, newcomer.request.max_cached)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        extents, width = self.books.of(plan.work), self.shape.width
        stops = [offset % width + work.stop for work, (offset, _) in zip(plan.work, extents, strict=True)]
        self.columns = max(self.columns, *stops)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        self.books.release(sequence.id)
        if not self.books.places:
            self.shape, self.columns = _Shape(), 0

    def usage(self) -> KVUsage:
        """Count every row's computed columns, padding and finished rows included (Baton, Fig. 8)."""
        return KVUsage(self.shape.rows * self.columns, self.shape.num_tokens, self.capacity)

    def check_integrity(self) -> None:
        extents, shape = self.books.places, self.shape
        if shape.num_tokens > self.capacity or bool(extents) != bool(shape.rows):
            raise LawBroken(
                "conservation", f"a rectangle {shape} holds {len(extents)} sequences in {self.capacity} slots"
            )
        free = set(range(shape.rows))
        for name, (offset, size) in extents.items():
            row, column = divmod(offset, shape.width)
            if row not in free or column + size > shape.width:
                raise LawBroken("conservation", f"{name} reaches beyond its row of {shape}, or shares it")
            free.remove(row)
