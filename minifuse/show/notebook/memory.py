"""Draws a map of memory: the owner of each slot during an iteration, and moves."""

from __future__ import annotations

from collections.abc import Sequence

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import FREE, HUES, INK
from minifuse.show.notebook.memory_map import Map, look_of, words_of
from minifuse.show.notebook.picture import Picture, check_runs, explain
from minifuse.show.notebook.played import Played
from minifuse.show.notebook.slot_lines import Form, Panel, form_of
from minifuse.trace.slot_books import Frame, books

WIDEST, CELL, LEFT = 9.6, 0.19, 0.7  # inches: widths of a picture, a slot, and the numbers beside slots
HEAD = 0.5  # inches above a map
MOST_SLOTS = 4096  # of a tier, in a picture
ALL_SLOTS = 512  # a device of at most so many slots is drawn whole, unused ones included


def draw_memory(played: Played, step: int | Sequence[int]) -> Picture:
    """Draw who owns each slot of device and host during an iteration.

        draw_memory(played, step=7)
        draw_memory(played, step=[7, 8])  # one above the other

    A slot has the colour of its owner. Slots are grouped as the memory groups them: in rows of a rectangle, buffers of
    a region, or blocks. Slots that the iteration writes are underlined; arrows show moves of KV. If there are
    several waves, the device is drawn once for each. Requests that finish with the iteration still have their slots.

    Args:
        step: the number of an iteration, as in the trace and in `draw_lanes`, or a list of such numbers.

    Raises:
        UsageError: there is no such iteration, or memory is too large to be drawn.
    """
    check_runs([played], "draw_memory")
    wanted = [*step] if isinstance(step, Sequence) else [step]
    known = [one.step for one in played.history.iterations]
    if not wanted or any(isinstance(one, bool) or one not in known for one in wanted):
        last = f"0 to {max(known)}" if known else "none"
        raise UsageError(f"step is {step!r:.60}, and the iterations of {played.name} are {last}: give one, or several.")
    forms = {tier: form_of(played.events, tier) for tier in ("device", "host")}
    found: dict[int, Frame] = {}
    tops = dict.fromkeys(forms, 0)  # one more than the highest slot that is ever used
    for frame in books(played.events):
        for tier, slot in frame.changed:
            tops[tier] = max(tops[tier], slot + 1)
        if frame.event.get("step") in wanted:
            found[frame.event["step"]] = frame._replace(held=dict(frame.held))
    sizes = _sizes(played, tops)
    maps = [_panels(found[one], forms, sizes) for one in wanted]
    wide = max(panel.width for panels in maps for panel in panels)
    cell = min(CELL, (WIDEST - LEFT) / wide)
    heights = [panels[-1].bottom * CELL * 1.25 + HEAD for panels in maps]
    picture = Picture(max(6.0, wide * cell + LEFT), sum(heights) + 0.5)
    every = picture.subplots(len(wanted), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    seen: set[str] = set()
    for one, panels, axes in zip(wanted, maps, every, strict=True):
        seen |= Map(played, found[one], panels, axes, (picture.get_figwidth() - LEFT) / wide).draw()
        axes.set_xlim(-0.2, wide + 0.2)
        axes.set_ylim(panels[-1].bottom, 0)
    legend = {words: look_of(state, HUES[0]) for state, words in words_of(played).items() if state in seen}
    fresh = {"written in this iteration": {"facecolor": INK}} if any(found[one].event["work"] for one in wanted) else {}
    explain(picture, {**legend, **fresh, "free": {"facecolor": FREE}})
    return picture


def _sizes(played: Played, tops: dict[str, int]) -> dict[str, int]:
    """Return how many slots of each tier to draw, at least all used slots.

    Raises:
        UsageError: too many slots are used.
    """
    few = played.capacity <= ALL_SLOTS
    sizes = tops | {"device": max(tops["device"], played.capacity) if few else tops["device"]}
    for tier, size in sizes.items():
        if size > MOST_SLOTS:
            raise UsageError(
                f"{played.name} uses {size:,} slots of the {tier}, and at most {MOST_SLOTS:,} are drawn: play it with "
                "less kv_memory, or shorter requests."
            )
    return sizes


def _panels(frame: Frame, forms: dict[str, Form], sizes: dict[str, int]) -> list[Panel]:
    """Return the panels of an iteration, from top to bottom."""
    panels: list[Panel] = []
    waves: list[int | None] = [*range(len(frame.effects.waves))] or [None]
    for tier, wave in [*(("device", wave) for wave in waves), ("host", None)]:
        if sizes[tier]:
            top = panels[-1].bottom + 0.5 if panels else 0.0
            moves = frame.event["moves"]
            arrows = wave is not None and any(move[4] != move[5] for move in moves)
            moved = any(move[4] == move[5] == tier and wave in (None, move[7]) for move in moves)
            panels.append(Panel(tier, wave, sizes[tier], forms[tier], top, arrows, moved))
    return panels
