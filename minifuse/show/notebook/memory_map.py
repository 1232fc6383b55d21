"""Draws one iteration in a map of memory: its slots, their owners, and moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from minifuse.io.parsing import number
from minifuse.show.notebook.colours import FREE, IDLE, INK, SOFT, ink_on, owner_colour, tint
from minifuse.show.notebook.picture import LETTER
from minifuse.show.notebook.played import Played
from minifuse.show.notebook.slot_lines import BELOW_ARROWS, RISE, Box, Panel
from minifuse.trace.idle_slots import Idle, idle_slots
from minifuse.trace.slot_books import Frame, Slots
from minifuse.trace.slots import fresh_slots

MOST_ARROWS = 60
MARK = 0.14  # height of the line in slots that the iteration writes, as a part of a slot
NARROWEST_RULED = 0.06  # inches; narrower slots have no lines on their sides
MS = 1e3
HEADLINE: dict[str, Any] = {  # above arrows
    "fontsize": 8,
    "color": SOFT,
    "bbox": {"facecolor": "white", "linewidth": 0, "pad": 1},
}
ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "mutation_scale": 9,
    "linewidth": 1.3,
    "color": INK,
    "shrinkA": 0,
    "shrinkB": 0,
    "path_effects": [withStroke(linewidth=3.2, foreground="white")],
}

WORDS = {
    "written": "has KV that is needed",
    "reserved": "set aside, not yet written",
    "kept": "kept until it is reclaimed",
    "copy": "also on the host: may be taken",
    "idle": "computed, and not needed",
    "lying": "computed before, and not needed",
}


class Slot(NamedTuple):
    """The look of a slot; adjacent slots that look alike are drawn as one."""

    owners: tuple[str, ...]
    state: str  # of `Held`, or "idle" or "lying"
    fresh: bool


class Map:
    """Draws one iteration. `inch` is the width of a slot, in inches."""

    def __init__(self, played: Played, frame: Frame, panels: list[Panel], axes: Axes, inch: float) -> None:
        self.played, self.frame, self.panels, self.axes, self.inch = played, frame, panels, axes, inch

    def draw(self) -> set[str]:
        """Draw the iteration; return the states of slots that occur."""
        axes = self.axes
        seen: set[str] = set()
        for panel in self.panels:
            held = self.frame.during(panel.wave)
            for box in panel.boxes(0, panel.count):
                axes.add_patch(Rectangle((box.x, box.y), box.wide, 1, facecolor=FREE, edgecolor="white", gid="ground"))
            axes.text(0, panel.top + 0.8, self._headline(panel), va="bottom", zorder=5, **HEADLINE)
            runs = [*self._runs(panel, held)]
            for first, stop, slot in runs:
                self._run(panel, first, stop, slot)
            self._names(panel, runs)
            self._lines(panel)
            seen |= {slot.state for *_, slot in runs}
        self._moves()
        axes.set_title(self._title(), fontsize=10, loc="left", color=INK, parse_math=False)
        axes.set_axis_off()
        return seen

    def _runs(self, panel: Panel, held: Slots) -> Iterator[tuple[int, int, Slot]]:
        """Yield runs of adjacent slots that look alike: first, stop, look."""
        event = self.frame.event
        on_device = panel.tier == "device" and bool(event["work"])
        fresh = fresh_slots(event, panel.wave) if on_device else set()
        idle = idle_slots(event, self.frame.held, panel.wave) if on_device else Idle(set(), set())
        order = {name: i for i, name in enumerate(self.played.history.stories)}

        def look(slot: int) -> Slot | None:
            if slot in idle.computed or slot in idle.lying:
                return Slot((), "idle" if slot in idle.computed else "lying", False)
            if (one := held.get((panel.tier, slot))) is None:
                return None
            return Slot(tuple(sorted(one.owners, key=order.__getitem__)), one.state, slot in fresh)

        for slot, group in groupby(range(panel.count), look):
            slots = list(group)
            if slot is not None:
                yield slots[0], slots[-1] + 1, slot

    def _run(self, panel: Panel, first: int, stop: int, slot: Slot) -> None:
        own = owner_colour(self.played, slot.owners[0]) if slot.owners else INK
        look = look_of(slot.state, own)
        gid = f"{panel.tier} {slot.state} {'+'.join(slot.owners)}".rstrip()
        for box in panel.boxes(first, stop):
            self.axes.add_patch(Rectangle((box.x, box.y), box.wide, 1, gid=gid, **look))
            if slot.fresh:
                line = Rectangle((box.x, box.y + 1 - MARK), box.wide, MARK, facecolor=INK, linewidth=0, gid="fresh")
                self.axes.add_patch(line)

    def _names(self, panel: Panel, runs: list[tuple[int, int, Slot]]) -> None:
        """Write owners once per box: on their widest written run, otherwise their widest run."""
        widest: dict[tuple[str, int], tuple[bool, int, Box, str]] = {}
        for first, stop, slot in runs:
            at = first
            for box in panel.boxes(first, stop):
                if slot.owners:
                    key = "+".join(slot.owners), at // panel.form.unit
                    one = slot.state == "written", box.wide, box, slot.owners[0]
                    widest[key] = max(widest.get(key, one), one)
                at += box.wide
        for (name, *_), (written, wide, box, owner) in widest.items():
            if (len(name) + 0.5) * LETTER <= wide * self.inch:
                behind = None if written else {"facecolor": "white", "alpha": 0.7, "pad": 0.6, "linewidth": 0}
                ink = ink_on(owner_colour(self.played, owner)) if written else INK
                self.axes.text(
                    box.middle, box.y + 0.5, name, ha="center", va="center", fontsize=8, color=ink, bbox=behind
                )

    def _lines(self, panel: Panel) -> None:
        """Draw thin lines between slots, and the number of each line's first slot."""
        at = [(slot, box) for slot in range(panel.count) for box in panel.boxes(slot, slot + 1)]
        if self.inch > NARROWEST_RULED:
            lines = [[(x, y), (x, y + 1)] for _, (x, y, _) in at]
            self.axes.add_collection(LineCollection(lines, colors="white", linewidths=0.5))
        for slot, (x, y, _) in at:
            if x == 0:
                self.axes.text(-0.4, y + 0.5, f"{slot:,}", ha="right", va="center", fontsize=7, color=SOFT)

    def _moves(self) -> None:
        """Draw an arrow for each move."""
        for kind, source, target, count, tier, target_tier, moment, wave in self.frame.event["moves"][:MOST_ARROWS]:
            start = _wave_of(tier, moment, wave)
            ends = (self._panel(tier, start), source), (self._panel(target_tier, wave), target)
            boxes = [[*panel.boxes(first, first + count)] for panel, first in ends]
            for pieces, style in zip(boxes, (":", "-"), strict=True):
                look: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.2, "linestyle": style}
                for x, y, wide in pieces:
                    self.axes.add_patch(Rectangle((x, y), wide, 1, gid="moved", **look))
            here, there = (max(pieces, key=lambda box: box.wide) for pieces in boxes)
            if tier != target_tier and any(panel.wave is not None for panel, _ in ends):  # short: into a wave, or out
                box = there if target_tier == "device" else here
                inside, outside = (box.middle, box.y + 0.95), (box.middle, box.y + 1 + 0.8 * BELOW_ARROWS)
                self._arrow(kind, *((outside, inside) if box is there else (inside, outside)))
            elif here.y == there.y:  # above the line
                self._arc(kind, here, there)
            else:
                down = here.y < there.y
                self._arrow(kind, (here.middle, here.y + down), (there.middle, there.y + (not down)))

    def _arrow(self, kind: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.axes.add_patch(FancyArrowPatch(start, end, gid=f"move {kind}", **ARROW))

    def _arc(self, kind: str, here: Box, there: Box) -> None:
        """Draw an arrow between slots of one line; near and far slots get equal heights."""
        above = here.y - RISE * 4 / 3  # a Bezier curve rises to three quarters of its control points
        points = [(here.middle, here.y), (here.middle, above), (there.middle, above), (there.middle, there.y)]
        path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        self.axes.add_patch(FancyArrowPatch(path=path, gid=f"move {kind}", **ARROW))

    def _panel(self, tier: str, wave: int) -> Panel:
        of_tier = [panel for panel in self.panels if panel.tier == tier]
        return next((panel for panel in of_tier if panel.wave == wave), of_tier[0])

    def _headline(self, panel: Panel) -> str:
        """Write what a panel shows: tier, form, computed rows or buffers, and moves."""
        parts = [panel.tier if panel.wave is None else f"{panel.tier}, wave {panel.wave}"]
        if panel.form.noun:
            parts.append(f"{number(panel.form.unit, 'slot')} a {panel.form.noun}")
        shape = self.frame.event["shape"] or {"kind": None}
        if panel.tier == "device" and shape["kind"] == "Rectangle":
            columns = f"{shape['start']} to {shape['stop'] - 1}"
            one = shape["stop"] - shape["start"] == 1
            column = f"column {shape['start']}" if one else f"columns {columns}"
            parts.append(f"{column} of {number(shape['rows'], 'row')} from slot {shape['offset']} computed whole")
        elif panel.tier == "device" and shape["kind"] == "Region":
            last = shape["offset"] + shape["size"] - 1
            parts.append(f"buffers {shape['offset']} to {last} computed together")
        if panel.wave is not None:
            parts += [f"{kind}: {number(count, 'slot')}" for kind, count in self._moved(panel.wave).items()]
        return "; ".join(parts)

    def _moved(self, wave: int) -> Counter[str]:
        """Count the slots moved into or out of a wave, by kind of move."""
        sums: Counter[str] = Counter()
        for kind, _, _, count, tier, target_tier, moment, which in self.frame.event["moves"]:
            if tier != target_tier and _wave_of(tier, moment, which) == wave:
                sums[kind.replace("_", " ")] += count
        return sums

    def _title(self) -> str:
        event = self.frame.event
        used, _, capacity, host = event["kv"]
        later = 0
        if self.played.of_cells:  # slots are set aside for later tasks, and have no owner until a task runs
            waves = (None, *range(len(self.frame.effects.waves)))
            slots = {slot for wave in waves for tier, slot in self.frame.during(wave) if tier == "device"}
            later = max(0, used - len(slots))
        parts = [f"{used - later} of {capacity} slots in use"] if event["work"] else ["moves alone"]
        parts += [f"{later} more set aside for later tasks"] if later else []
        parts += [f"{host} on the host alone"] if host else []
        sums: Counter[str] = Counter()
        for kind, _, _, count, *_ in event["moves"]:
            sums[kind] += count
        parts += [f"{kind.replace('_', ' ')}: {number(count, 'slot')}" for kind, count in sums.items()]
        if (left_out := len(event["moves"]) - MOST_ARROWS) > 0:
            parts.append(f"{number(left_out, 'move')} not drawn")
        at = f"{event['wall']['start_s'] * MS:.4g} ms"
        return f"{self.played.name}, iteration {event['step']}, {at}: {'; '.join(parts)}"


def _wave_of(tier: str, moment: str, wave: int) -> int:
    """Return the wave at which a transfer is drawn.

    KV that leaves the device before wave 3 is drawn at wave 2.
    """
    return max(0, wave - 1) if moment == "before" and tier == "device" else wave


def words_of(played: Played) -> dict[str, str]:
    """Return what the states of slots mean, for slots of KV or of cells' states."""
    return {**WORDS, "written": "has a state that is needed"} if played.of_cells else WORDS


def look_of(state: str, own: str) -> dict[str, Any]:
    """Return how slots in a state are drawn, as arguments of a `Patch`."""
    look: dict[str, Any] = {"facecolor": own, "edgecolor": own, "linewidth": 0.0}
    if state == "reserved":
        look["facecolor"] = tint(own, 0.75)
    elif state in ("kept", "copy"):
        look |= {"facecolor": tint(own, 0.6), "hatch": "...." if state == "kept" else "////"}
    elif state in ("idle", "lying"):
        look |= {"facecolor": "white", "edgecolor": IDLE, "hatch": "xxxx" if state == "idle" else "..."}
    return look
