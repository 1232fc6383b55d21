"""A map of memory: whose each slot is while an iteration runs, and what is moved for it."""

from __future__ import annotations

from collections.abc import Sequence

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import FREE, HUES, INK
from minifuse.show.notebook.memory_map import Map, look_of, words_of
from minifuse.show.notebook.picture import Picture, check_runs, explain
from minifuse.show.notebook.played import Played
from minifuse.show.notebook.slot_lines import Form, Panel, form_of
from minifuse.trace.log import whole_tables
from minifuse.trace.slot_books import Frame, books

WIDEST, CELL, LEFT = 9.6, 0.19, 0.7  # inches: of a picture, a slot, what stands beside slots
HEAD = 0.5  # inches above a map
MOST_SLOTS = 4096  # of a tier, that are drawn
ALL_SLOTS = 512  # as many are drawn though they are never used


def draw_memory(played: Played, step: int | Sequence[int]) -> Picture:
    """Whose each slot of the device, and of the host if it is used, is while an iteration runs.

        draw_memory(played, step=7)
        draw_memory(played, step=[7, 8])  # one above the other

    Slots have the colour of the request that owns them, in lines of what the memory has: rows of a rectangle, buffers
    of a region, blocks. Those that the iteration writes are underlined, and an arrow goes from where KV was to where it
    is moved. With several waves the device is drawn as it is in each of them. What finishes with the iteration still
    has its slots.

    Args:
        step: the number of an iteration, as in the trace and under `draw_lanes`, or several.

    Raises:
        UsageError: there is no such iteration, or too much memory to be drawn.
    """
    check_runs([played], "draw_memory")
    wanted = [*step] if isinstance(step, Sequence) else [step]
    known = [one.step for one in played.history.iterations]
    if not wanted or any(isinstance(one, bool) or one not in known for one in wanted):
        last = f"0 to {max(known)}" if known else "none"
        raise UsageError(f"step is {step!r:.60}, and the iterations of {played.name} are {last}: give one, or several.")
    steps = [event for event in whole_tables(played.events) if event["event"] == "step"]
    forms = {tier: form_of(steps, tier) for tier in ("device", "host")}
    found: dict[int, Frame] = {}
    tops = dict.fromkeys(forms, 0)  # one more than the highest slot that is ever used
    for frame in books(played.events):
        for slots in (frame.held, *frame.effects.waves):
            for tier, slot in slots:
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
    """The slots of each tier that are drawn: all of the device, if they are few, or as many as are ever used.

    Raises:
        UsageError: they are too many.
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
    """What is drawn of an iteration, from top to bottom."""
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
