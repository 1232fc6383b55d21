"""What an attention stage decides for one iteration: the shape that is computed whole, the waves, and the lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minifuse.work import Span

__all__ = ["Layout", "Rectangle", "Region", "Shape", "StateRows"]


class Rectangle(NamedTuple):
    """Rows of KV slots, and the columns [start, stop) of them that one iteration computes, in every row (Baton, 2.1).

    Row r, column c is slot `offset + r * stride + c`; rows may be longer than what is computed of them. What no `Work`
    covers is padding or a finished row, and counts as idle.

    >>> Rectangle(offset=10, rows=3, stride=8, start=4, stop=6).slot(1, 5)  # of 3 x 2 tokens computed
    23
    """

    offset: int
    rows: int
    stride: int  # slots from one row to the next
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.rows * (self.stop - self.start)

    def slot(self, row: int, column: int) -> int:
        """The slot of one column of one row."""
        return self.offset + row * self.stride + column


class Region(NamedTuple):
    """Adjacent buffers [offset, offset + size) of `width` KV slots each: one token is computed in every one of them.

    `offset` and `size` are the paper's buffer_offset and buffer_size (Flover, Fig. 4), counted in buffers. A buffer
    that is no `Work`'s extent is computed all the same, and counts as idle (Fig. 5).
    """

    offset: int
    size: int
    width: int

    @property
    def num_tokens(self) -> int:
        return self.size


class StateRows(NamedTuple):
    """Adjacent slots of states [offset, offset + rows), one for each chain of a padded batch (BatchMaker, 2.2.3).

    Every one of the `steps` waves computes a node in each row, and leaves its state there. A row whose chain has no
    node in a wave is computed all the same, and counts as idle.

    >>> StateRows(offset=0, rows=3, steps=5).num_tokens  # of which chains of 2, 3 and 5 nodes need 10
    15
    """

    offset: int
    rows: int
    steps: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.steps


Shape = Rectangle | Region | StateRows


@dataclass(frozen=True, slots=True)
class Layout:
    """How the work of one iteration is computed.

    `waves` are ranges of work that are attended (or, of cell graphs, computed) one after the other; without any, all
    work is one wave. `shape` is what is computed whole, idle rows included; None is ragged: the work and nothing else.
    `lanes` are the indices of the work that each lane of a packed kernel attends in turn (FluidInfer, 4.2); without
    any, every piece of work is attended by itself.
    """

    waves: tuple[Span, ...] = ()
    shape: Shape | None = None
    lanes: tuple[tuple[int, ...], ...] = ()


RAGGED = Layout()
