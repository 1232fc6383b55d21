"""Checks that each row of a rectangle has one owner; counts slots in use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from minifuse.core.errors import LawBroken
from minifuse.core.shapes import Rectangle


@dataclass(slots=True)
class _Row:
    """A row of the rectangle at `offset`; its columns [begin, stop) are in use."""

    offset: int
    stride: int
    begin: int
    stop: int


class RowBooks:
    """Tracks the rows of rectangles in use, by their first slot."""

    def __init__(self) -> None:
        self.rows: dict[int, _Row] = {}

    def check_owners(self, shape: Rectangle, slots: Mapping[str, Iterable[int]]) -> None:
        """Raise `LawBroken` if two sequences have slots in one row.

        Args:
            slots: the slots of each sequence on the device.
        """
        owner: dict[int, str] = {}
        for name, own in slots.items():
            for row in {(slot - shape.offset) // shape.stride for slot in own}:
                if 0 <= row < shape.rows and owner.setdefault(row, name) != name:
                    raise LawBroken("conservation", f"{owner[row]} and {name} lie in row {row} of {shape}")

    def use(self, shape: Rectangle, lying: Collection[int]) -> int:
        """Record a rectangle's rows; return the number of slots in use, in rows and outside.

        A row never becomes narrower: its sequence may be behind the others. An earlier rectangle at another place stays
        in use while a sequence is in one of its rows.

        Args:
            lying: the slots that hold KV.
        """
        end = shape.offset + shape.rows * shape.stride
        rows: dict[int, _Row] = {}
        for first in range(shape.offset, end, shape.stride):
            row, before = _Row(shape.offset, shape.stride, shape.begin, shape.stop), self.rows.get(first)
            if before is not None and (before.offset, before.stride) == (row.offset, row.stride):
                row.stop = max(row.stop, before.stop)
            rows[first] = row
        others = {first: row for first, row in self.rows.items() if first >= end or first + row.stride <= shape.offset}
        used = {
            row.offset for first, row in others.items() if any(first <= slot < first + row.stride for slot in lying)
        }
        self.rows = rows | {first: row for first, row in others.items() if row.offset in used}
        ranges = [range(first, first + row.stride) for first, row in self.rows.items()]
        outside = [slot for slot in lying if all(slot not in one for one in ranges)]
        return len(outside) + sum(row.stop - row.begin for row in self.rows.values())
