"""A memory that Baton will stand on, in miniature: a rectangle whose rows change hands while it runs (4.1 and 4.2).

It needs no policy of its own: `iteration` fills its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from minifuse.errors import LawBroken
from minifuse.layout import Rectangle
from minifuse.memory.fixed import FixedRoom, check_proposal
from minifuse.memory.reserved import ReservedMemory
from minifuse.options import option
from minifuse.place import Runs
from minifuse.plan import Placement, Proposal, Reason
from minifuse.request import Request, Sequence
from minifuse.stages import register
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing.capacity import count_slots
from minifuse.work import Span


class _Room(FixedRoom):
    """Tries out how wide the window will be when the last of its sequences ends."""

    def __init__(self, memory: Living) -> None:
        self.memory = memory
        self.free = memory.options.rows - len(memory.rows)
        self.newcomers: list[Sequence] = []

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if len(self.newcomers) == self.free:
            return Reason("rows-full", sequence.id, "not admitted: every row has a sequence")
        width = self.memory.width_with((*self.newcomers, sequence))
        if width > self.memory.stride:
            text = f"not admitted: the window would grow to {width} columns of {self.memory.stride}"
            return Reason("memory-full", sequence.id, text)
        self.newcomers.append(sequence)
        return None


class Living(ReservedMemory):
    """Rows of equal length; a finished row is given to a newcomer while the others go on.

    A running sequence's next token takes the column behind the window. A newcomer's prompt begins there too
    (`insert=right`), so that the others are padded after their token to its length (vector shaping, 4.1); or it ends
    there (`insert=left`), in columns that its row has free, and the window is extended on the left if it is longer
    (where vector embedding puts it, 4.2). Before that, leading columns that no sequence needs are released.

    >>> # rows 2; a: 2 tokens, b: 1. After three columns b has ended, and c: 3 tokens takes its row.
    >>> # columns        0 1 2 3 4 5 6                 0 1 2 3 4
    >>> # insert=right   a a a a . . a   insert=left   a a a a a
    >>> #                . b b c c c c                 . c c c c
    """

    name = "living"
    offers: ClassVar[frozenset[str]] = frozenset({"rectangle"})

    @dataclass(frozen=True)
    class Options:
        rows: int = option(3, "rows of the rectangle", minimum=1)
        insert: str = option("right", "where a newcomer's prompt goes", choices=("right", "left"))

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.stride = capacity // self.options.rows
        self.rows: dict[str, int] = {}
        self.columns: dict[str, list[Span]] = {}  # of each sequence, in order
        self.most: dict[str, int] = {}  # tokens of each whose KV will be written, at most
        self.begin = self.stop = 0  # the window

    def _needed(self, prompts: tuple[Request, ...]) -> int:
        """The prompts of a request may be served one after the other."""
        return self.options.rows * max(request.max_cached for request in prompts)

    def _computed(self, newcomers: tuple[Sequence, ...]) -> tuple[int, int]:
        """The columns that the next iteration computes."""
        longest = max(map(len, newcomers), default=1)
        stop = self.stop + (1 if self.options.insert == "left" and self.rows else longest)
        return stop - longest, stop

    def width_with(self, newcomers: tuple[Sequence, ...]) -> int:
        """How wide the window can grow until the last sequence ends, if no more come in."""
        _, stop = self._computed(newcomers)
        left = [newcomer.request.max_cached - len(newcomer) for newcomer in newcomers]
        left += [most - self.cached[name] - 1 for name, most in self.most.items()]
        first = [stop - len(newcomer) for newcomer in newcomers]
        return stop + max(left) - min([*first, *self._first_columns()])

    def _first_columns(self) -> list[int]:
        return [spans[0].start for spans in self.columns.values()]

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        check_proposal(proposal, self.rows)
        admit = proposal.admit
        if admit and self.width_with(admit) > self.stride:
            raise LawBroken("budget", f"the window will grow to {self.width_with(admit)} columns of {self.stride}")
        start, stop = self._computed(admit)
        if admit:
            self.begin = min([*self._first_columns(), start])
        self.extents |= self._reserve(admit)
        for work in proposal.work:
            spans = self.columns.setdefault(work.sequence, [])
            left = self.stop if spans else stop - work.num_tokens
            if spans and spans[-1].stop == left:
                spans[-1] = Span(spans[-1].start, left + 1)
            else:
                spans.append(Span(left, left + work.num_tokens))
        self.stop = stop
        rectangle = Rectangle(0, self.options.rows, self.stride, start, stop, self.begin)
        for name, spans in self.columns.items():
            self.extents[name] = rectangle.place(self.rows[name], *spans)
        return Placement(tuple(self.extents[work.sequence] for work in proposal.work), rectangle)

    def _reserve(self, newcomers: tuple[Sequence, ...]) -> dict[str, Any]:
        for newcomer, row in zip(newcomers, self._free_rows(), strict=False):
            self.rows[newcomer.id], self.most[newcomer.id] = row, newcomer.request.max_cached
        return {newcomer.id: Runs(()) for newcomer in newcomers}

    def _free_rows(self) -> list[int]:
        return [row for row in range(self.options.rows) if row not in self.rows.values()]

    def _free(self, sequence_id: str, extent: Any) -> None:
        del self.rows[sequence_id], self.columns[sequence_id], self.most[sequence_id]
        if not self.rows:
            self.begin = self.stop

    @property
    def num_used(self) -> int:
        """Every row of the window: padding, gaps and finished rows included, released columns not."""
        return self.options.rows * (self.stop - self.begin)

    @property
    def num_reserved(self) -> int:
        return self.num_used

    def check_integrity(self) -> None:
        if self.stop - self.begin > self.stride or len({*self.rows.values()}) < len(self.rows):
            raise LawBroken("conservation", f"{self.rows} share [{self.begin}, {self.stop}) of {self.stride} columns")


def register_living() -> None:
    """Make the memory known, in the registers of a test's own."""
    register(Living)
    count_slots("living")(lambda sequences, options: options.rows * max(s.request.max_cached for s in sequences))


def row_of(insert: str) -> Technique:
    """Orca's policy over this memory."""
    options = {"memory.insert": insert, "batching.max_batch": 9}
    return replace(TECHNIQUES["static"], name=insert, batching="iteration", memory="living", options=options)
