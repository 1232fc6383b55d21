"""Finds slots that an iteration computes, or uses, for no request."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.plan import Span
from minifuse.core.shapes import Rectangle, Region
from minifuse.trace.log import Event
from minifuse.trace.slot_books import Slots
from minifuse.trace.slots import fresh_slots, slots_of


class Idle(NamedTuple):
    """Slots in use that no request needs.

    `computed` are computed in the step; `lying` were computed earlier.
    """

    computed: set[int]
    lying: set[int]


def idle_slots(step: Event, held: Slots, wave: int | None = None) -> Idle:
    """Return the idle slots of a step's rectangle, region, or rows of states.

    >>> shape = {"kind": "Rectangle", "offset": 0, "rows": 2, "stride": 8, "start": 3, "stop": 4}
    >>> idle_slots({"shape": shape, "work": [["a", 3, 4]], "places": [[0, 8]], "waves": [[0, 1]]}, {})
    Idle(computed={11}, lying={0, 1, 2, 8, 9, 10})
    """
    shape = step.get("shape") or {"kind": None}
    fields = {name: value for name, value in shape.items() if name != "kind"}
    if shape["kind"] == "Rectangle":
        rectangle = Rectangle(**fields)
        lying = _slots(rectangle, rectangle.begin, rectangle.start)
        return Idle(
            {*_slots(rectangle, rectangle.start, rectangle.stop)} - fresh_slots(step),
            {slot for slot in lying if ("device", slot) not in held},
        )
    if shape["kind"] == "Region":
        region = Region(**fields)
        busy = {slot // region.width for slot in fresh_slots(step)}
        idle = [one for one in range(region.offset, region.offset + region.size) if one not in busy]
        return Idle({one * region.width + i for one in idle for i in range(region.width)}, set())
    if shape["kind"] == "StateRows":
        return Idle({*range(shape["offset"], shape["offset"] + shape["rows"])} - fresh_slots(step, wave), set())
    return Idle(set(), set())


def _slots(rectangle: Rectangle, start: int, stop: int) -> list[int]:
    """Return the slots of columns [start, stop) in every row."""
    columns = Span(max(start, stop - rectangle.stride), stop)
    if columns.start >= stop:
        return []
    return [slot for row in range(rectangle.rows) for slot in slots_of([*rectangle.place(row, columns)])]
