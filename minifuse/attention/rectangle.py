"""Finds KV in a rectangle's rows, and slots to clear for newcomers (Baton, 4.1, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.places import runs_in, runs_of
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Rectangle


class View(NamedTuple):
    """The slots that attention reads of each row: the window, column by column.

    `parts` are ranges of slots, counted from the row's first: one, or two if the window wraps around. For each row,
    `held` lists the ranges of columns that its sequence holds, counted from the window's first. A finished row has
    none.

    >>> # stride 8, columns [5, 9) in use: the parts are slots 5 to 7, and slot 0. A sequence in columns 5, 7 and 8
    >>> # holds the ranges (0, 1) and (2, 4)
    """

    parts: tuple[Span, ...]
    held: list[list[tuple[int, int]]]

    @property
    def width(self) -> int:
        """Count the slots that are read of each row."""
        return sum([stop - start for start, stop in self.parts])


def view_of(plan: Plan, rectangle: Rectangle) -> View:
    """Return which slots of a plan's rectangle are read, and which columns each row holds.

    Raises:
        LawBroken: a sequence lies in a row with another, or not within the window.
    """
    offset, rows, stride, _, stop, begin = rectangle
    first, width = begin % stride, stop - begin
    behind = first + width - stride  # columns that lie at the beginning of the row
    parts = (Span(first, stride), Span(0, behind)) if behind > 0 else (Span(first, first + width),)
    held: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    owners: dict[int, str] = {}
    for (name, _, num_tokens, _), runs in zip(plan.work, runs_of(plan), strict=True):
        for slot, length in _of_text(runs, num_tokens):
            row, column = divmod(slot - offset, stride)
            start = (column - begin) % stride
            if not 0 <= row < rows or start >= width:
                rectangle.locate(slot)  # which raises
            if owners.setdefault(row, name) != name:
                raise LawBroken("layout", f"step {plan.step} has {name} and {owners[row]} in one row of {rectangle}")
            if held[row] and held[row][-1][1] == start:  # it continues at the beginning of the row
                start, _ = held[row].pop()
                length += (column - begin) % stride - start
            held[row].append((start, start + length))
    return View(parts, held)


def _of_text(runs: Seq[tuple[int, int]], num_tokens: int) -> list[tuple[int, int]]:
    """Cut runs of slots to the first `num_tokens` slots, since a place may be longer."""
    cut = []
    for slot, length in runs:
        if num_tokens > 0:
            cut.append((slot, min(length, num_tokens)))
        num_tokens -= length
    return cut


def slots_to_clear(plan: Plan, span: Span) -> list[tuple[int, int]]:
    """Return the slots that a wave sets to zero, as ranges.

    A masked key has the weight 0, and 0 x NaN is NaN. So where attention reads a row, it may find only the KV of the
    row's sequence, and zeros in gaps and in padding. (Baton, 4.1, sets the KV of the old sequence to -inf; but 0 x -inf
    is NaN, too.) A row or a buffer is new to its sequence if this plan admits the sequence, moves it there, or computes
    its first token (its group may have begun earlier).

    >>> # a new prompt of 3 tokens in the buffer of slots 16 to 23: slots [19, 24) are cleared
    """
    if isinstance(plan.shape, Rectangle):
        return [*_in_rows(plan, plan.shape)]
    return [*_in_buffers(plan, span)]


def _in_rows(plan: Plan, rectangle: Rectangle) -> Iterator[tuple[int, int]]:
    """Yield the slots of a rectangle that enter the window without KV.

    In a new row, this is the whole window but for the sequence's KV. In other rows, it is the columns computed beside
    their tokens and, with a newcomer, the columns before those of all earlier sequences: the window may have been
    extended to the left.

    >>> # a prompt of 3 tokens enters columns 4 to 6 of the window [1, 7): columns 1 to 3 of its row are cleared, and
    >>> # columns 5 and 6 of a row that computes its token in column 4
    """
    offset, _, stride, start, stop, begin = rectangle
    fresh = {work.sequence for work in plan.work if not work.start}.union(plan.admitted)
    if stop - start == 1 and not fresh and not plan.moves:  # each row computes its token: the usual case
        return
    held = view_of(plan, rectangle).held
    rows = {(runs[0][0] - offset) // stride: work.sequence for work, runs in zip(plan.work, runs_of(plan), strict=True)}
    moved = {(move.target - offset) // stride for move in plan.moves if move.target_tier == "device"}
    new = {row for row, name in rows.items() if name in fresh or row in moved}
    left = min([held[row][0][0] for row in rows if row not in new], default=0) if new else 0
    for row in sorted(rows):
        entering = [(0, stop - begin)] if row in new else [(0, left), (start - begin, stop - begin)]
        columns = [Span(begin + first, begin + last) for one in entering for first, last in _without(one, held[row])]
        yield from [(slot, slot + length) for slot, length in runs_in(rectangle.place(row, *columns))]


def _in_buffers(plan: Plan, span: Span) -> Iterator[tuple[int, int]]:
    """Yield the slots without KV in buffers that are new to their sequences."""
    moved = [move.target for move in plan.moves if move.target_tier == "device"]
    if not moved and not plan.admitted and all(work.start for work in plan.work):
        return
    placed = list(zip(plan.work, runs_of(plan), strict=True))
    for (name, first, num_tokens, _), runs in placed[slice(*span)]:
        begin, length = runs[0]
        end = begin + length
        if not first or name in plan.admitted or any(begin <= slot < end for slot in moved):
            kept = [(slot, slot + count) for slot, count in _of_text(runs, num_tokens)]
            yield from _without((begin, end), kept)


def _without(whole: tuple[int, int], kept: Seq[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range outside ascending ranges.

    >>> [*_without((2, 9), [(0, 3), (5, 6)])]
    [(3, 5), (6, 9)]
    """
    start, end = whole
    for first, last in kept:
        if start < min(first, end):
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end
