"""Finds KV in a rectangle's rows, and slots to clear for newcomers (Baton, 4.1, 4.2)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.places import runs_of
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Rectangle


class View(NamedTuple):
    """The slots [first, first + width) of each row, which attention reads.

    They are the window's slots, or the whole row if the window wraps around. For each row, `held` lists the ranges of
    slots that its sequence holds, counted from `first`. A finished row has none.

    >>> # stride 8, columns [5, 9) in use: slots 5, 6, 7 and 0 of each row. So the view is the whole row, and a sequence
    >>> # in columns 5, 7 and 8 holds the ranges (5, 6), (7, 8) and (0, 1)
    """

    first: int
    width: int
    held: list[list[tuple[int, int]]]


def view_of(plan: Plan, rectangle: Rectangle) -> View:
    """Return which slots of a plan's rectangle are read, and which each row holds.

    Raises:
        LawBroken: a sequence lies in a row with another, or not within the window.
    """
    offset, rows, stride, _, stop, begin = rectangle
    first, width = (0, stride) if rectangle.wraps else (begin % stride, stop - begin)
    held: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    owners: dict[int, str] = {}
    for (name, _, num_tokens, _), runs in zip(plan.work, runs_of(plan), strict=True):
        for slot, length in _of_text(runs, num_tokens):
            row, column = divmod(slot - offset, stride)
            if not 0 <= row < rows or (column - begin) % stride >= stop - begin:
                rectangle.locate(slot)  # which raises
            if owners.setdefault(row, name) != name:
                raise LawBroken("layout", f"step {plan.step} has {name} and {owners[row]} in one row of {rectangle}")
            held[row].append((column - first, column - first + length))
    return View(first, width, held)


def _of_text(runs: Seq[tuple[int, int]], num_tokens: int) -> list[tuple[int, int]]:
    """Cut runs of slots to the first `num_tokens` slots, since a place may be longer."""
    cut = []
    for slot, length in runs:
        if num_tokens > 0:
            cut.append((slot, min(length, num_tokens)))
        num_tokens -= length
    return cut


def slots_to_clear(plan: Plan, span: Span) -> list[tuple[int, int]]:
    """Return the slots that a wave sets to zero, in rows whose sequence is new.

    A masked key has the weight 0, and 0 x NaN is NaN. So a row may hold only the KV of its own sequence, and zeros
    in gaps, in padding, and in columns that the window will reach later. (Baton, 4.1, sets the KV of the old sequence
    to -inf; but 0 x -inf is NaN, too.) A row's sequence is new if this plan admits it, moves it to the row, or computes
    its first token (its group may have begun earlier). An insertion thus clears only one row.

    >>> # a new prompt of 3 tokens in the buffer of slots 16 to 23: slots [19, 24) are cleared
    """
    ranges: list[tuple[int, int]] = []
    if not plan.admitted and not plan.moves and all(work.start for work in plan.work):
        return ranges
    moved = [move.target for move in plan.moves if move.target_tier == "device"]
    placed = list(zip(plan.work, runs_of(plan), strict=True))
    for (name, first, num_tokens, _), runs in placed[slice(*span)]:
        begin, length = runs[0]
        if isinstance(plan.shape, Rectangle):
            begin, length = plan.shape.slot(plan.shape.locate(begin)[0], 0), plan.shape.stride
        end = begin + length
        if first and name not in plan.admitted and not any(begin <= slot < end for slot in moved):
            continue
        for slot, kept in sorted(_of_text(runs, num_tokens)):
            ranges.append((begin, slot))
            begin = slot + kept
        ranges.append((begin, end))
    return [(start, stop) for start, stop in ranges if start < stop]
