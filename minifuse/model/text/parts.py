"""The part of each parameter that one rank holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """A part of a parameter: ranges of rows, stacked; a range of columns; or everything."""

    rows: tuple[range, ...] | None = None
    columns: range | None = None

    def within(self, first: int, size: int) -> Part:
        """Return the part that lies in rows [first, first + size), numbered from `first`.

        >>> Part(rows=(range(2, 4), range(6, 8))).within(4, 8).rows
        (range(2, 4),)
        """
        if self.rows is None:
            return self
        inside = ((max(one.start, first), min(one.stop, first + size)) for one in self.rows)
        return Part(tuple(range(start - first, stop - first) for start, stop in inside if start < stop), self.columns)

    def num_rows(self, whole: int) -> int:
        """Count the rows of this part, in a tensor of `whole` rows."""
        return whole if self.rows is None else sum(map(len, self.rows))

    def of(self, whole: Tensor) -> Tensor:
        """Cut this part out of a tensor."""
        if self.columns is not None:
            return whole[:, self.columns.start : self.columns.stop]
        if self.rows is None:
            return whole
        return torch.cat([whole[one.start : one.stop] for one in self.rows])


WHOLE = Part()
