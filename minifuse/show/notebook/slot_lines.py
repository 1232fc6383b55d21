"""Where each slot is drawn: in lines of boxes, in the form that the memory has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from minifuse.trace.log import Event

LINE = 64  # slots in a line, if the memory has no form of its own
GAP = 0.6  # between boxes, in slots
# In heights of a slot: above lines, and below each; room for arrows below lines, and above; how high these rise.
HEADLINE, BELOW, BELOW_ARROWS, ABOVE_ARROWS, RISE = 1.1, 0.35, 0.8, 0.55, 0.55


class Form(NamedTuple):
    """The boxes that slots come in: rows of a rectangle, buffers, blocks, or lines of no meaning."""

    unit: int  # slots of a box
    across: int  # boxes in a line
    noun: str  # what a box is; empty: nothing


class Box(NamedTuple):
    """Consecutive slots as they are drawn, side by side in one line."""

    x: float
    y: float
    wide: int

    @property
    def middle(self) -> float:
        return self.x + self.wide / 2


@dataclass(frozen=True)
class Panel:
    """The slots [0, count) of a tier, or of the device while one wave is attended; `top` is where its headline is."""

    tier: str
    wave: int | None
    count: int
    form: Form
    top: float
    arrows: bool = False  # below its lines, into a wave and out of it
    moved: bool = False  # within it: arrows above its lines

    @property
    def lines(self) -> int:
        return -(-self.count // (self.form.unit * self.form.across))

    @property
    def down(self) -> float:
        """From one line to the next."""
        return 1 + (BELOW_ARROWS if self.arrows else BELOW) + (ABOVE_ARROWS if self.moved else 0)

    @property
    def first(self) -> float:
        """Where the first line is."""
        return self.top + HEADLINE + (ABOVE_ARROWS if self.moved else 0)

    @property
    def bottom(self) -> float:
        return self.first + self.lines * self.down

    @property
    def width(self) -> float:
        """Of the longest line."""
        return max(box.x + box.wide for box in self.boxes(0, self.count)) if self.count else 1.0

    def boxes(self, first: int, stop: int) -> Iterator[Box]:
        """Where slots [first, stop) are drawn: a box for each piece that lies side by side.

        >>> [*Panel("device", None, 16, Form(4, 2, "block"), 0.0).boxes(2, 6)]
        [Box(x=2.0, y=1.1, wide=2), Box(x=4.6, y=1.1, wide=2)]
        """
        unit, across, _ = self.form
        while first < min(stop, self.count):
            box, within = divmod(first, unit)
            wide = min(unit - within, stop - first, self.count - first)
            line, column = divmod(box, across)
            yield Box(column * (unit + GAP) + within, self.first + line * self.down, wide)
            first += wide


def form_of(steps: Iterable[Event], tier: str) -> Form:
    """The form that a tier's memory has in these steps of one run, whose block tables are whole.

    The host keeps blocks where the device does, and is otherwise a line of slots.
    """
    unit = 0
    for step in steps:
        shape: dict[str, Any] = (step["shape"] or {}) if tier == "device" else {}
        if shape.get("kind") == "Rectangle" and step["phase"] == "running":
            return Form(shape["stride"], 1, "row")
        if shape.get("kind") == "Region":
            return _several(shape["width"], "buffer")
        for place in step["places"]:
            if isinstance(place[0], list) and len(place) == 2 and len(step["work"][0]) == 3:
                unit = place[1]
    return _several(unit, "block") if unit else Form(LINE, 1, "")


def _several(unit: int, noun: str) -> Form:
    return Form(unit, max(1, LINE // unit), noun)
