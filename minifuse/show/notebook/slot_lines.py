"""Places slots in a picture: in lines of boxes, by the form of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minifuse.trace.log import Event
from minifuse.trace.slots import block_size

LINE = 64  # slots in a line, except lines of rows
GAP = 0.6  # between boxes, in slots
# In heights of a slot: room above all lines, below a line, below one with arrows, for arrows above; rise of arrows.
HEADLINE, BELOW, BELOW_ARROWS, ABOVE_ARROWS, RISE = 1.1, 0.35, 0.8, 0.55, 0.55


class Form(NamedTuple):
    """The boxes of a memory's slots: rows of a rectangle, buffers, blocks, or plain lines."""

    unit: int  # slots of a box
    across: int  # boxes in a line
    noun: str  # for a box; empty: a plain line


class Box(NamedTuple):
    """Consecutive slots, drawn side by side in one line."""

    x: float
    y: float
    wide: int

    @property
    def middle(self) -> float:
        return self.x + self.wide / 2


@dataclass(frozen=True)
class Panel:
    """Slots [0, count) of a tier, or of the device in one wave."""

    tier: str
    wave: int | None
    count: int
    form: Form
    top: float  # the vertical position of its headline
    arrows: bool = False  # whether arrows below its lines show transfers
    moved: bool = False  # whether arrows above its lines show moves within it

    @property
    def lines(self) -> int:
        return -(-self.count // (self.form.unit * self.form.across))

    @property
    def down(self) -> float:
        """Return the distance from one line to the next."""
        return 1 + (BELOW_ARROWS if self.arrows else BELOW) + (ABOVE_ARROWS if self.moved else 0)

    @property
    def first(self) -> float:
        """Return the vertical position of the first line."""
        return self.top + HEADLINE + (ABOVE_ARROWS if self.moved else 0)

    @property
    def bottom(self) -> float:
        return self.first + self.lines * self.down

    @property
    def width(self) -> float:
        """Return the width of the longest line."""
        return max(box.x + box.wide for box in self.boxes(0, self.count)) if self.count else 1.0

    def boxes(self, first: int, stop: int) -> Iterator[Box]:
        """Yield boxes for slots [first, stop): one for each piece without a gap.

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


def form_of(events: Sequence[Event], tier: str) -> Form:
    """Return the form of a tier's memory in a run.

    The host has blocks if the device does, and is otherwise a line of slots.
    """
    for step in events if tier == "device" else ():
        shape = step.get("shape") or {"kind": None}
        if shape["kind"] == "Rectangle" and step["phase"] == "running":
            return Form(shape["stride"], 1, "row")
        if shape["kind"] == "Region":
            return _several(shape["width"], "buffer")
    unit = block_size(events)
    return _several(unit, "block") if unit else Form(LINE, 1, "")


def _several(unit: int, noun: str) -> Form:
    return Form(unit, max(1, LINE // unit), noun)
