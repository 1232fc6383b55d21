"""Finds the slots that a trace's places, moves and shapes name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minifuse.trace.checks import run_of_shape, runs_of_place
from minifuse.trace.log import Event


def slots_of(place: list[Any], start: int = 0, stop: int | None = None) -> list[int]:
    """Return the slots of tokens [start, stop) of a place.

    >>> slots_of([[4, 2], 16], 15, 18), slots_of([8, 16], 15), slots_of([[[3, 2], [9, 2]]])
    ([79, 32, 33], [23], [3, 4, 9, 10])
    """
    if len(place) == 1:
        return [slot for first, count in place[0] for slot in range(first, first + count)][start:stop]
    if isinstance(place[0], list):
        blocks, size, *_ = place
        stop = len(blocks) * size if stop is None else min(stop, len(blocks) * size)
        return [blocks[token // size] * size + token % size for token in range(start, stop)]
    return [*range(place[0], place[0] + place[1])[start:stop]]


def as_drawn(step: Event) -> Event:
    """Return a step with whole block tables; slots that layers share follow the device's.

    >>> out = ["offload", 1, 40, 1, "shared", "host", "after", 0]
    >>> step = as_drawn({"kv": [0, 0, 6, 0], "places": [[[0, 1], 2, "shared"]], "moves": [out]})
    >>> step["places"], slots_of(step["places"][0]), step["moves"][0][1]
    ([[[[6, 2], [8, 2]]]], [6, 7, 8, 9], 7)
    """
    first: int = step["kv"][2]
    if not any("shared" in move[4:6] for move in step["moves"]):
        return step

    def place(told: list[Any]) -> list[Any]:
        return [[[first + block * told[1], told[1]] for block in told[0]]] if told[2:] == ["shared"] else told

    def move(told: list[Any]) -> list[Any]:
        kind, source, target, count, *tiers, moment, wave = told
        starts = [number + first * (tier == "shared") for number, tier in zip((source, target), tiers, strict=True)]
        return [kind, *starts, count, *["device" if tier == "shared" else tier for tier in tiers], moment, wave]

    return {**step, "places": [*map(place, step["places"])], "moves": [*map(move, step["moves"])]}


def first_shared(events: Iterable[Event]) -> int:
    """Return the first slot that layers share, as drawn; 0 if a run has none."""
    steps = (event for event in events if event["event"] == "step")
    return next((step["kv"][2] for step in steps if any("shared" in move[4:6] for move in step["moves"])), 0)


def tier_of(place: list[Any]) -> str:
    """Return the tier of a place in a step as drawn."""
    return str(place[2]) if len(place) == 3 else "device"


def fresh_slots(step: Event, wave: int | None = None) -> set[int]:
    """Return the device slots that a step, or one of its waves, writes.

    Args:
        step: a step with whole block tables, as drawn.

    >>> fresh_slots({"work": [["a", 2, 4]], "places": [[8, 16]], "waves": [[0, 1]]})
    {10, 11}
    """
    first, stop = (0, len(step["work"])) if wave is None else step["waves"][wave]
    found: set[int] = set()
    for (_, start, end, *cell), place in list(zip(step["work"], step["places"], strict=True))[first:stop]:
        if cell:
            found.add(place[1])
        elif tier_of(place) == "device":
            found |= {*slots_of(place, start, end)}
    return found


def highest_slot(events: Iterable[Event]) -> int:
    """Return one more than the highest slot that a trace names."""
    highest = 0
    for step in (event for event in events if event["event"] == "step"):
        runs = [run for place in step["places"] for run in runs_of_place(place)]
        runs += [(first, count) for _, source, target, count, *_ in step["moves"] for first in (source, target)]
        if shape := step.get("shape"):
            runs.append(run_of_shape(shape))
        highest = max([highest, *(first + count for first, count in runs)])
    return highest


def block_size(events: Iterable[Event]) -> int:
    """Return the number of slots in a block; 0 if no place is in blocks."""
    places = (place for event in events if event["event"] == "step" for place in event["places"])
    return next((place[2] for place in places if len(place) > 2), 0)
