"""The slots of what an iteration computes whole that no request needs."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.shapes import Rectangle, Region
from minifuse.trace.slot_books import Frame, fresh_slots


class Idle(NamedTuple):
    """Slots of what a step computes whole, that no request needs: computed in it, or before it and still in use."""

    computed: set[int]
    lying: set[int]


def idle_slots(frame: Frame, wave: int | None = None) -> Idle:
    """The idle slots of a rectangle; of a region, of which whole buffers are idle; or of rows of states in one wave.

    >>> shape = {"kind": "Rectangle", "offset": 0, "rows": 2, "stride": 8, "start": 3, "stop": 4}
    >>> step = {"shape": shape, "work": [["a", 3, 4]], "places": [[0, 8]], "waves": [[0, 1]]}
    >>> idle_slots(Frame(step, {}))
    Idle(computed={11}, lying={0, 1, 2, 8, 9, 10})
    """
    step, held = frame.event, frame.held
    shape = step.get("shape") or {"kind": None}
    fields = {name: value for name, value in shape.items() if name != "kind"}
    if shape["kind"] == "Rectangle":
        rectangle = Rectangle(**fields)
        rows, computed = range(rectangle.rows), range(rectangle.start, rectangle.stop)
        before = {rectangle.slot(row, column) for row in rows for column in range(rectangle.begin, rectangle.start)}
        return Idle(
            {rectangle.slot(row, column) for row in rows for column in computed} - fresh_slots(step),
            {slot for slot in before if ("device", slot) not in held},
        )
    if shape["kind"] == "Region":
        region = Region(**fields)
        busy = {slot // region.width for slot in fresh_slots(step)}
        idle = [one for one in range(region.offset, region.offset + region.size) if one not in busy]
        return Idle({one * region.width + i for one in idle for i in range(region.width)}, set())
    if shape["kind"] == "StateRows" and wave is not None:
        rows = range(shape["offset"], shape["offset"] + shape["rows"])
        return Idle(set(rows) - fresh_slots(step, wave), set())
    return Idle(set(), set())
