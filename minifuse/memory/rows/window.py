"""Tracks the columns of a rectangle that each sequence uses (Baton, 4.1, 4.2)."""

from bisect import insort
from collections.abc import Collection
from typing import NamedTuple

from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Span
from minifuse.core.shapes import Rectangle


class Entry(NamedTuple):
    """A sequence that gets a row."""

    name: str
    length: int  # tokens of its text so far
    missing: int  # how many last tokens the iteration computes; the KV of earlier ones is copied to the row
    most: int  # the largest number of tokens that it may ever cache


class Window:
    """Keeps the range [begin, stop) of a rectangle's columns that are in use.

    A row is a ring of `stride` slots (see `Rectangle`). A sequence has one column for each token that it may ever
    cache, in order. In every iteration, the next token of every running sequence takes the first column behind the
    window. A newcomer's text ends in the last column that the iteration computes, and has padding before it.

    Vector shaping (4.1): a prompt of l_q tokens is computed in l_q new columns. The other rows have their next
    token in the first of these columns, and padding in the rest: a gap. Their later tokens follow the gap. In this
    example of B = 3 rows, query2 has ended in column 3, and query3, a prompt of two tokens, takes its row. Columns 4
    and 5 are computed: B x l_q tokens, of which (B - 1)(l_q - 1) = 2 are idle:

        column    0 1 2 3 4 5 6
        query0    . a a a a . a      mask of its token in column 6: 0 1 1 1 1 0 1
        query1    b b b b b . b
        query3    . . . . c c c      mask of its token in column 5: 0 0 0 0 1 1

    Without the newcomer, only column 4 would be computed, with masks of l_am = 5 columns. With it, masks have
    l_am + l_q - 1 = 6 columns.

    Vector embedding (4.2): all tokens of a newcomer's prompt but the last were computed earlier. Its text ends in the
    column of the other rows' next token, so that B x 1 tokens are computed. The KV of B x (l_kv + 1) slots is read,
    where l_kv is the larger of the window's width and l_q - 1. A text shorter than the window has padding before it; a
    longer one extends the window to the left. No sequence has a gap. If more tokens of a newcomer are missing, all rows
    compute their columns, too.

    >>> window = Window(3, 8)
    >>> entries = [Entry("query0", 2, 2, 8), Entry("query1", 3, 3, 8), Entry("query2", 3, 3, 4)]
    >>> window.enter(entries), window.enter(())
    (Span(start=0, stop=3), Span(start=3, stop=4))
    >>> window.leave("query2")
    >>> window.enter([Entry("query3", 2, 2, 4)])
    Span(start=4, stop=6)
    >>> window.columns["query0"], window.columns["query3"]
    ((Span(start=1, stop=5), Span(start=6, stop=10)), (Span(start=4, stop=8),))

    Args:
        embed: whether newcomers enter by embedding; otherwise they enter by shaping.
        shrink: whether rows after the last in use, and columns before the first, are released at once. Otherwise they
            are kept until no row is in use, or `give_up` is called.
    """

    def __init__(self, rows: int, stride: int, *, embed: bool = False, shrink: bool = True) -> None:
        self.embed, self.shrink = embed, shrink
        self.tallest = 0  # the largest height since no row was in use
        self.begin = self.stop = 0
        self.rows: dict[str, int] = {}  # sequence -> row
        self.columns: dict[str, tuple[Span, ...]] = {}  # sequence -> the columns of its tokens, in order
        self.divide(rows, stride)

    def divide(self, rows: int, stride: int) -> None:
        """Divide the slots into `rows` rows of `stride` slots. No sequence may have a row."""
        self.stride = stride
        self.free = list(range(rows))  # ascending
        self._ring = Rectangle(0, rows, stride, 0, 0)

    def copy(self) -> "Window":
        """Copy the window, to try an iteration out."""
        twin = Window(self._ring.rows, self.stride, embed=self.embed, shrink=self.shrink)
        twin.tallest = self.tallest
        twin.begin, twin.stop, twin.free = self.begin, self.stop, [*self.free]
        twin.rows, twin.columns = {**self.rows}, {**self.columns}
        return twin

    @property
    def width(self) -> int:
        return self.stop - self.begin

    @property
    def height(self) -> int:
        """Count the rows that are computed.

        These are the rows up to the last with a sequence; without `shrink`, all rows used since no row was.
        """
        height = max(self.rows.values(), default=-1) + 1
        return height if self.shrink or not self.rows else max(height, self.tallest)

    def after(self, longest: int, others: bool) -> int:
        """Return where the window ends after an iteration with newcomers of up to `longest` tokens.

        Args:
            others: whether other rows are in use: their next tokens are computed, too.
        """
        return self.stop + (1 if others and self.embed else max(longest, others))

    def enter(self, newcomers: Collection[Entry]) -> Span:
        """Advance by one iteration. Returns the columns that the iteration computes.

        Newcomers get the first free rows. The next token of every sequence that has a row is computed, too. Then the
        leading columns that no sequence uses are released ("Resources releasing", 4.1): `begin` is the paper's
        min(index_i). Without `shrink` they are kept while the rows have room.
        """
        longest = max([entry.missing for entry in newcomers], default=0)
        if newcomers and not self.rows:  # the window begins in slot 0 of each ring, so it does not wrap around
            begin = -(-self.stop // self.stride) * self.stride
            self.stop = begin + max([entry.length for entry in newcomers]) - longest
            self.begin = self.stop
            self.tallest = 0
        new = Span(self.stop, self.after(longest, bool(self.rows)))
        stop = new.stop
        if stop - new.start > 1:
            for name, spans in self.columns.items():
                self.columns[name] = shaped(spans, new)
        for entry in newcomers:
            self.rows[entry.name] = self.free.pop(0)
            self.columns[entry.name] = (Span(stop - entry.length, stop - entry.length + entry.most),)
        begin, tallest = self.begin, self.height
        self.stop = stop
        self.give_up()
        if not self.shrink:
            self.tallest = tallest
            self.begin = min(begin, self.begin) if stop - begin <= self.stride else self.begin
        return Span(min(new.start, stop - longest), stop)

    def give_up(self) -> None:
        """Release the rows and the leading columns that no sequence uses."""
        self.tallest = 0
        self.begin = min([spans[0].start for spans in self.columns.values()], default=self.stop)

    def place(self, name: str) -> Extent | Runs:
        """Return the slots of a sequence's columns."""
        return self._ring.place(self.rows[name], *self.columns[name])

    def move_last(self) -> str:
        """Move the sequence in the last row to the first free row. Returns its name."""
        name = max(self.rows, key=self.rows.__getitem__)
        row = self.rows[name]
        self.rows[name] = self.free.pop(0)
        insort(self.free, row)
        return name

    def leave(self, name: str) -> None:
        """Free a sequence's row. The next iteration releases columns that no other sequence uses."""
        insort(self.free, self.rows.pop(name))
        del self.columns[name]

    def rectangle(self, computed: Span) -> Rectangle:
        return Rectangle(0, self.height, self.stride, *computed, begin=self.begin)


def shaped(spans: tuple[Span, ...], new: Span) -> tuple[Span, ...]:
    """Return a running sequence's columns after an iteration that computes the `new` columns.

    The sequence's next token takes the first new column; the other new columns are a gap.

    >>> shaped((Span(0, 9),), Span(4, 7))  # a token in column 4, the next one in column 7
    (Span(start=0, stop=5), Span(start=7, stop=11))
    """
    *before, (start, stop) = spans
    cut = new.start + 1
    if stop <= cut or new.stop <= cut:
        return spans
    return (*before, Span(start, cut), Span(new.stop, stop + new.stop - cut))
