"""Finds ended requests whose row, or buffer, was still computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from minifuse.core.plan import Extent
from minifuse.trace.history import History, Iteration

Row = tuple[int, int]  # first slot, number of slots
Rows = tuple[list[Row], dict[Row, str]]  # all rows that an iteration computes; row -> request with work in it


def rows_of(one: Iteration) -> Rows:
    """Return the rows (or buffers) that an iteration computes, and the requests with work there."""
    shape = one.event.get("shape") or {}
    places = zip(one.work, one.event["places"], strict=True)
    return rows_of_shape(shape.get("kind", ""), shape, ((name, place) for (name, *_), place in places))


def rows_of_shape(kind: str, shape: Mapping[str, Any], places: Iterable[tuple[str, Sequence[Any]]]) -> Rows:
    """Return what `rows_of` returns, from a shape and the places of requests.

    >>> rows_of_shape("Rectangle", {"offset": 0, "rows": 2, "stride": 8}, [("a", [8, 5])])
    ([(0, 8), (8, 8)], {(8, 8): 'a'})
    """
    if kind == "Rectangle":
        every = [(shape["offset"] + row * shape["stride"], shape["stride"]) for row in range(shape["rows"])]
        base, size = shape["offset"], shape["stride"]
    elif kind == "Region":
        base, size = 0, shape["width"]
        every = [(buffer * size, size) for buffer in range(shape["offset"], shape["offset"] + shape["size"])]
    else:
        return [], {}
    owners = {}
    for name, place in places:
        slot = _first_slot(place)
        owners[base + (slot - base) // size * size, size] = name
    return every, owners


def idle_rows(history: History) -> dict[str, list[int]]:
    """Return, for each ended request, the indices of iterations that still computed its row."""

    def had_ended(name: str, index: int) -> bool:
        ended_s = history.stories[name].ended_s
        return ended_s is not None and ended_s <= history.iterations[index].start_s

    return idle_columns((((one.worker, one.preprocesses), rows_of(one)) for one in history.iterations), had_ended)


def idle_columns(rows: Iterable[tuple[Hashable, Rows]], had_ended: Callable[[str, int], bool]) -> dict[str, list[int]]:
    """Find the ended requests whose rows were still computed, from the rows of each iteration.

    Among the iterations of one stream, a row belongs to the last request that had work in it.

    Args:
        rows: for each iteration, its stream (worker, phase) and its rows.
        had_ended: is called with a request and an iteration's index; returns whether the request had ended when the
            iteration started.

    Returns:
        For each such request, the indices of the iterations that still computed its row.

    >>> first, second = (0, 8), (8, 8)
    >>> both, alone = ([first, second], {first: "a", second: "b"}), ([first, second], {first: "a"})
    >>> idle_columns([(0, both), (0, alone), (0, alone)], lambda name, index: name == "b")
    {'b': [1, 2]}
    """
    found: dict[str, list[int]] = {}
    had: dict[Hashable, dict[Row, str]] = {}
    for index, (stream, (every, owners)) in enumerate(rows):
        if not every:
            continue
        known = {**had.get(stream, {}), **owners}
        last = had[stream] = {row: known[row] for row in every if row in known}
        for row, name in last.items():
            if row not in owners and had_ended(name, index):
                found.setdefault(name, []).append(index)
    return found


def _first_slot(place: Sequence[Any]) -> int:
    """Return the first slot of an extent, or of the first of several runs."""
    return int(place[0][0][0]) if len(place) == 1 else Extent(*place).offset
