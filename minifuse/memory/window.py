"""The columns of a rectangle that are in use, and which of them each sequence has (Baton, 4.1 and 4.2)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from typing import NamedTuple

from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Span
from minifuse.core.shapes import Rectangle


class Entry(NamedTuple):
    """A sequence that gets a row: its text so far has `length` tokens, of which the iteration computes the last
    `missing`; the KV of the others is copied there. At most `most` tokens of it will be cached."""

    name: str
    length: int
    missing: int
    most: int


class Window:
    """Columns [begin, stop) of a rectangle's rows, each of which is a ring of `stride` slots (see `Rectangle`).

    A sequence has columns for all tokens that it may ever cache, one behind the other: its next token takes the column
    behind the window, as that of every other sequence does. A newcomer's text ends in the last column that an iteration
    computes; before it its row is padding.

    Vector shaping (4.1): a prompt of l_q tokens is computed in l_q new columns. The others have their token in the
    first of these, and are padded after it: they have a gap there, and go on behind it. With B = 3 rows, when query2
    has ended in column 3 and query3 of two tokens takes its row, columns 4 and 5 are computed, B x l_q tokens, of which
    (B - 1)(l_q - 1) = 2 are idle:

        column    0 1 2 3 4 5 6
        query0    . a a a a . a      mask of its token in column 6: 0 1 1 1 1 0 1
        query1    b b b b b . b
        query3    . . . . c c c      mask in column 5: 0 0 0 0 1 1, as long as l_am + l_q - 1 = 5 + 2 - 1

    Vector embedding (4.2): a newcomer's text ends where the others' next token goes, so that B x 1 tokens are computed,
    and KV of B x (l_kv + 1) columns is read, l_kv being the width of the window, or l_q - 1 if that is more. A shorter
    text has padding before it; for a longer one the window is extended on the left. No sequence has a gap.

    >>> window = Window(3, 8)
    >>> entries = [Entry("query0", 2, 2, 8), Entry("query1", 3, 3, 8), Entry("query2", 3, 3, 4)]
    >>> window.enter(entries, ()), window.enter((), ("query0", "query1", "query2"))
    (Span(start=0, stop=3), Span(start=3, stop=4))
    >>> window.leave("query2")
    >>> window.enter([Entry("query3", 2, 2, 4)], ("query0", "query1"))
    Span(start=4, stop=6)
    >>> window.columns["query0"], window.columns["query3"]
    ((Span(start=1, stop=5), Span(start=6, stop=10)), (Span(start=4, stop=8),))

    Args:
        places: where sequences lie; those that have rows are written here.
        embed: how newcomers enter: by embedding, or else by shaping.
    """

    def __init__(
        self, rows: int, stride: int, places: dict[str, Extent | Runs] | None = None, *, embed: bool = False
    ) -> None:
        self.embed = embed
        self.begin = self.stop = 0
        self.rows: dict[str, int] = {}  # sequence -> row
        self.columns: dict[str, tuple[Span, ...]] = {}  # sequence -> those of its tokens, in order
        self.places: dict[str, Extent | Runs] = {} if places is None else places  # the same as slots
        self._left = False  # whether a sequence has left since columns were last released
        self.divide(rows, stride)

    def divide(self, rows: int, stride: int) -> None:
        """Have so many rows from now on, of so many slots. No sequence may have a row."""
        self.stride = stride
        self.free = list(range(rows))  # ascending
        self._ring = Rectangle(0, rows, stride, 0, 0)

    @property
    def width(self) -> int:
        return self.stop - self.begin

    @property
    def height(self) -> int:
        """Rows up to the last that has a sequence: those behind it are not computed."""
        return max(self.rows.values(), default=-1) + 1

    def after(self, longest: int, runs: bool) -> int:
        """Where the window will end after an iteration that computes up to `longest` tokens of newcomers.

        Args:
            runs: whether it also computes the next token of sequences that have rows.
        """
        if self.embed:
            return self.stop + (runs if self.rows else longest)
        return self.stop + max(longest, int(runs))

    def enter(self, newcomers: Collection[Entry], running: Collection[str]) -> Span:
        """Go on by one iteration: newcomers get the first free rows. Returns the columns that it computes.

        The leading columns that no sequence has are released before ("Resources releasing", 4.1): `begin` is the
        paper's min(index_i).

        Args:
            running: sequences with a row whose next token is computed.
        """
        longest = max([entry.missing for entry in newcomers], default=0)
        if newcomers and not self.rows:  # the first column takes the first slot, so that the window does not wrap
            begin = -(-self.stop // self.stride) * self.stride
            self.stop = begin + max([entry.length for entry in newcomers]) - longest
        stop = self.after(longest, bool(running))
        start = min([stop - longest, self.stop]) if running else stop - longest
        new = Span(self.stop, stop)
        if stop - self.stop != 1 or len(running) < len(self.rows):
            for name, spans in self.columns.items():
                after = shaped(spans, new, name in running)
                if after is not spans:
                    self._lie(name, *after)
        for entry in newcomers:
            self.rows[entry.name] = self.free.pop(0)
            self._lie(entry.name, Span(stop - entry.length, stop - entry.length + entry.most))
        if newcomers or self._left:
            self.begin = min([spans[0].start for spans in self.columns.values()], default=stop)
            self._left = False
        self.stop = stop
        return Span(start, stop)

    def move_last(self) -> tuple[str, Extent | Runs]:
        """Give the sequence in the last row the first free one, in the same columns. Returns it, and where it was."""
        name = max(self.rows, key=self.rows.__getitem__)
        before, row = self.places[name], self.rows[name]
        self.rows[name] = self.free.pop(0)
        insort(self.free, row)
        self._lie(name, *self.columns[name])
        return name, before

    def _lie(self, name: str, *spans: Span) -> None:
        self.columns[name] = spans
        self.places[name] = self._ring.place(self.rows[name], *spans)

    def leave(self, name: str) -> None:
        """A sequence gives its row back. Columns that it alone had are released with the next iteration."""
        self._left = True
        insort(self.free, self.rows.pop(name))
        del self.columns[name], self.places[name]

    def rectangle(self, computed: Span) -> Rectangle:
        return Rectangle(0, self.height, self.stride, *computed, begin=self.begin)


def shaped(spans: tuple[Span, ...], new: Span, runs: bool) -> tuple[Span, ...]:
    """The columns of a sequence when an iteration has taken `new` ones, of which it has the first if it `runs`.

    >>> shaped((Span(0, 9),), Span(4, 7), runs=True)  # a token in column 4, the next one in column 7
    (Span(start=0, stop=5), Span(start=7, stop=11))
    """
    *before, (start, stop) = spans
    cut = new.start + runs
    if stop <= cut or new.stop <= cut:
        return spans
    gap = new.stop - cut
    return (*before, *([Span(start, cut)] if cut > start else []), Span(new.stop, stop + gap))
