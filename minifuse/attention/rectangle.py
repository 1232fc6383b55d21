"""What the rows of a rectangle hold, and how a row is handed over (Baton, 2.1, 4.1 and 4.2)."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.places import runs_of
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Rectangle


class View(NamedTuple):
    """The slots [first, first + width) of every row: those of the window, or the whole row if the window wraps around.

    `held` are the ranges of the view in which a row's sequence lies, counted from `first`; a finished row has none.

    >>> # stride 8, columns [5, 9) in use: slots 5, 6, 7 and 0 of each row. The view is the row, of which a sequence in
    >>> # columns 5, 7 and 8 holds the ranges (5, 6), (7, 8) and (0, 1)
    """

    first: int
    width: int
    held: list[list[tuple[int, int]]]


def view_of(plan: Plan, rectangle: Rectangle) -> View:
    """What the rows of a plan's rectangle hold.

    Raises:
        LawBroken: a sequence lies in a row with another, or not within the window.
    """
    offset, rows, stride, _, stop, begin = rectangle
    first, width = (0, stride) if rectangle.wraps else (begin % stride, stop - begin)
    held: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    owners: dict[int, str] = {}
    for (name, _, left, _), runs in zip(plan.work, runs_of(plan), strict=True):
        ranges = []
        for slot, length in runs:
            if left <= 0:
                break
            row, column = divmod(slot - offset, stride)
            if not 0 <= row < rows or (column - begin) % stride >= stop - begin:
                rectangle.locate(slot)  # which raises
            if owners.setdefault(row, name) != name:
                raise LawBroken("layout", f"step {plan.step} has {name} and {owners[row]} in one row of {rectangle}")
            # A place may reach beyond the text so far, around its row, to where the columns before it are.
            ranges.append((column - first, min(column - first + min(length, left), width)))
            left -= length
        held[row] = ranges
    return View(first, width, held)


def slots_to_clear(plan: Plan, span: Span) -> list[tuple[int, int]]:
    """Return the slots that a wave sets to zero in rows that have a new sequence.

    A masked key has the weight 0, and 0 x NaN is NaN. A row holds zeros and the KV of its own sequence after this, so
    that nothing of another one can reach it, in a gap, in padding, or in columns that the window will move on to.
    (Baton, 4.1, sets the KV of the old sequence to -inf, of which a product with 0 is NaN too.) A row gets another
    sequence when it is admitted, or by a move to it, or later, when it begins with another plan than its group: so an
    insertion costs a row, however many there are.

    >>> # a prompt of 3 tokens in the buffer of slots 16 to 23: slots [19, 24)
    """
    ranges: list[tuple[int, int]] = []
    if not plan.admitted and not plan.moves and all(work.start for work in plan.work):
        return ranges
    moved = [move.target for move in plan.moves if move.target_tier == "device"]
    placed = list(zip(plan.work, runs_of(plan), strict=True))
    for (name, first, left, _), runs in placed[slice(*span)]:
        begin, length = runs[0]
        if isinstance(plan.shape, Rectangle):
            begin, length = plan.shape.slot(plan.shape.locate(begin)[0], 0), plan.shape.stride
        end = begin + length
        if first and name not in plan.admitted and not any(begin <= slot < end for slot in moved):
            continue
        kept = []
        for slot, length in runs:
            if left > 0:
                kept.append((slot, slot + min(left, length)))
            left -= length
        for start, stop in (*sorted(kept), (end, end)):
            ranges.append((begin, start))
            begin = stop
    return [(start, stop) for start, stop in ranges if start < stop]
