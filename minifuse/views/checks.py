"""Whether an event has what the views read of it: a trace may have been edited, or damaged."""

from __future__ import annotations

import math
from typing import Any

from minifuse.trace import Event

__all__ = ["check_reasons", "check_step", "check_text", "check_time"]


def check_time(seconds: Any) -> float:
    """The time in seconds.

    Raises:
        ValueError: it is none.
    """
    if not _is_number(seconds) or not math.isfinite(seconds):
        raise ValueError(f"{seconds!r} is no time")
    return float(seconds)


def check_text(text: Any) -> str:
    """The text, such as an id.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no text")
    return text


def check_reasons(event: Event) -> None:
    """Raise `ValueError` unless each reason of a step, or of a pause, is three texts."""
    _need(all(len(one) == 3 and all(isinstance(part, str) for part in one) for one in event["reasons"]), "reasons")


def check_step(event: Event) -> None:
    """Raise `ValueError`, `KeyError` or `TypeError` unless a step is as `minifuse.trace` writes it."""
    wall, work = event["wall"], event["work"]
    if check_time(wall["start_s"]) > check_time(wall["end_s"]):
        raise ValueError("the step ends before it begins")
    _need(all(_is_work(one) for one in work), "work")
    _need(len(event["places"]) == len(work), "places")
    for name in ("admitted", "evicted", "finished"):
        _need(all(isinstance(one, str) for one in event[name]), name)
    check_reasons(event)
    _need(all(len(move) > 5 and isinstance(move[0], str) and _is_number(move[3]) for move in event["moves"]), "moves")
    for name in ("step", "worker", "computed", "idle"):
        _need(isinstance(event[name], int), name)
    _need(len(event["kv"]) == 4 and all(isinstance(one, int) for one in event["kv"]), "kv")
    kept = event.get("kept", (0, 0))
    _need(len(kept) == 2 and all(isinstance(one, int) for one in kept), "kept")
    _need(isinstance(event["phase"], str), "phase")
    _need(isinstance(event["tokens"], dict) and isinstance(event["finished"], dict), "tokens and finished")
    _need(all(isinstance(reason, str) for reason in event["finished"].values()), "finished")
    _check_shape(event)
    _need(_is_number(wall.get("moving_s", 0.0)), "moving_s")
    sent = wall.get("transfers", {})
    _need(_is_number(sent.get("exposed_s", 0.0)), "transfers")
    for way in ("to_host", "to_device"):
        _need(len(sent.get(way, (0, 0))) == 2 and all(map(_is_number, sent.get(way, ()))), "transfers")


def _check_shape(event: Event) -> None:
    """Of a rectangle or a region: that its rows can be found, and every piece of work in them."""
    shape = event.get("shape")
    if shape is None or shape.get("kind") not in ("Rectangle", "Region"):
        return
    names = ("offset", "rows", "stride") if shape["kind"] == "Rectangle" else ("offset", "size", "width")
    _need(all(isinstance(shape[name], int) for name in names), "shape")
    _need(shape[names[2]] > 0 and shape[names[1]] < 10**6, "shape")
    for place in event["places"]:
        first = place[0][0][0] if len(place) == 1 else place[0]
        _need(isinstance(first, int), "places")


def _is_work(one: Any) -> bool:
    if len(one) not in (3, 4) or not isinstance(one[0], str) or not all(isinstance(cell, str) for cell in one[3:]):
        return False
    return isinstance(one[1], int) and isinstance(one[2], int) and one[1] < one[2]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is not as a trace tells it")
