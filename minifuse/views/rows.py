"""Rows of a rectangle, and buffers of a region, that were computed for nobody: whose they had been."""

from __future__ import annotations

from typing import Any

from minifuse.place import Extent
from minifuse.views.history import History, Iteration

__all__ = ["idle_rows", "rows_of"]

Row = tuple[int, int]  # its first slot, and how many it has


def rows_of(one: Iteration) -> tuple[list[Row], dict[Row, str]]:
    """The rows, or buffers, that an iteration computes whole, and whose work lies in them.

    Of a `Rectangle` at slot 0 with 2 rows of 8 slots, and work of "a" at [8, 5]: [(0, 8), (8, 8)], {(8, 8): "a"}.
    """
    shape = one.event.get("shape") or {}
    kind = shape.get("kind")
    if kind == "Rectangle":
        every = [(shape["offset"] + row * shape["stride"], shape["stride"]) for row in range(shape["rows"])]
        base, size = shape["offset"], shape["stride"]
    elif kind == "Region":
        base, size = 0, shape["width"]
        every = [(buffer * size, size) for buffer in range(shape["offset"], shape["offset"] + shape["size"])]
    else:
        return [], {}
    owners = {}
    for (name, *_), place in zip(one.work, one.event["places"], strict=True):
        slot = _first_slot(place)
        owners[base + (slot - base) // size * size, size] = name
    return every, owners


def idle_rows(history: History) -> dict[str, list[int]]:
    """For each request that had ended, the iterations (as indices) that still computed its row."""
    found: dict[str, list[int]] = {}
    last: dict[Row, str] = {}
    for index, one in enumerate(history.iterations):
        every, owners = rows_of(one)
        if not every:
            continue
        last = {row: name for row, name in last.items() if row in set(every)} | owners
        for row in every:
            if row not in owners and row in last:
                ended_s = history.stories[last[row]].ended_s
                if ended_s is not None and ended_s <= one.start_s:
                    found.setdefault(last[row], []).append(index)
    return found


def _first_slot(place: list[Any]) -> int:
    """Of consecutive slots, or of the first of several runs of them."""
    return int(place[0][0][0]) if len(place) == 1 else Extent(*place).offset
