"""Shapes computed in full: a rectangle of columns, a region of buffers, rows of states."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Span


class Rectangle(NamedTuple):
    """Rows of KV slots; one iteration computes columns [start, stop) of every row (Baton, 2.1).

    A row is a ring of `stride` slots: row r, column c is slot `offset + r * stride + c % stride`. Column numbers grow
    as the batch runs. [begin, stop) is the window of columns in use, no wider than the stride. Tokens that no `Work`
    covers are padding, or belong to finished rows, and count as idle.

    >>> Rectangle(offset=10, rows=3, stride=8, start=4, stop=6).slot(1, 5)  # row 1, column 5: 10 + 1 * 8 + 5
    23

    The window moves without copies (Baton, 4.1 and 4.2). Here columns 0 to 4 have been released, so that column 8 takes
    the slot of column 0. If the window were extended to the left, to column 3, that column would be in slot 3.

    >>> moved = Rectangle(offset=0, rows=2, stride=8, start=8, stop=9, begin=5)
    >>> [moved.slot(0, column) for column in range(5, 9)]
    [5, 6, 7, 0]
    >>> moved.place(1, Span(5, 6), Span(7, 9))  # a sequence in row 1, with a gap in column 6
    Runs(runs=((13, 1), (15, 1), (8, 1)))
    """

    offset: int
    rows: int
    stride: int  # slots from one row to the next
    start: int
    stop: int
    begin: int = 0  # the first column in use

    @property
    def num_tokens(self) -> int:
        return self.rows * (self.stop - self.start)

    def slot(self, row: int, column: int) -> int:
        """Return the slot of one column of one row."""
        return self.offset + row * self.stride + column % self.stride

    def locate(self, slot: int) -> tuple[int, int]:
        """Return the row of a slot, and its column in the window.

        >>> Rectangle(offset=10, rows=3, stride=8, start=8, stop=9, begin=5).locate(18)
        (1, 8)

        Raises:
            LawBroken: the slot is in no row, or in a column that has been released.
        """
        row, column = divmod(slot - self.offset, self.stride)
        if not 0 <= row < self.rows or not self.reads(slot):
            raise LawBroken("layout", f"slot {slot} is not in the window of {self}")
        return row, self.begin + (column - self.begin) % self.stride

    def reads(self, slot: int) -> bool:
        """Return whether a slot of some row is in the window."""
        return (slot - self.offset - self.begin) % self.stride < self.stop - self.begin

    @property
    def wraps(self) -> bool:
        """Return whether the window continues at the beginning of the rows."""
        return self.begin % self.stride + self.stop - self.begin > self.stride

    def place(self, row: int, *columns: Span) -> Extent | Runs:
        """Return the place of a sequence: its tokens fill these columns in turn."""
        runs: list[tuple[int, int]] = []
        for start, stop in columns:
            while start < stop:
                length = min(stop - start, self.stride - start % self.stride)
                runs.append((self.slot(row, start), length))
                start += length
        return Extent(*runs[0]) if len(runs) == 1 else Runs(tuple(runs))


class Region(NamedTuple):
    """Adjacent buffers [offset, offset + size) of `width` KV slots; each computes one token.

    `offset` and `size` are the paper's buffer_offset and buffer_size (Flover, Fig. 4), counted in buffers. A buffer
    without `Work` is computed all the same, and counts as idle (Fig. 5).
    """

    offset: int
    size: int
    width: int

    @property
    def num_tokens(self) -> int:
        return self.size


class StateRows(NamedTuple):
    """Adjacent slots of states, one for each chain of a padded batch (BatchMaker, 2.2.3).

    Each of the `steps` waves computes a node in every row [offset, offset + rows), and leaves its state there. A row
    whose chain has no node in a wave is computed all the same, and counts as idle.

    >>> StateRows(offset=0, rows=3, steps=5).num_tokens  # 3 rows x 5 waves; chains of 2, 3 and 5 nodes need 10
    15
    """

    offset: int
    rows: int
    steps: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.steps
