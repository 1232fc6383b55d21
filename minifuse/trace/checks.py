"""Checks the lines of a trace, which may have been edited or damaged.

A check raises `Damaged`, with a text that says what is wrong. If a line lacks a key, or a value has another type, the
check may raise another of `ERRORS` instead. `because` turns any of these errors into a clause.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from minifuse.core.submitted import fits_utf8
from minifuse.trace.log import Event

MOST = 2**31  # the largest number of slots, tokens or iterations in a trace
MOST_WORKERS = 2**12
MOST_LAYERS = 2**10  # if layers take turns on the device, a token has a slot for each layer
LATEST_S = 1e12
LISTS = (list, tuple)  # lists in a file, tuples in a run
TIERS = ("device", "host", "shared")
SHAPES = {
    "Rectangle": ("offset", "rows", "stride"),
    "Region": ("offset", "size", "width"),
    "StateRows": ("offset", "rows", "steps"),
}


class Damaged(ValueError):
    """Raised for a line that no run writes."""


ERRORS = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


def because(error: Exception) -> str:
    """Return what is wrong with a line, as a clause.

    >>> because(KeyError("arrival_s"))
    "it has no 'arrival_s'"
    """
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    if isinstance(error, Damaged):
        return str(error)
    return "a value is of another kind than a trace has there"


def check_time(seconds: Any) -> float:
    """Check and return a time in seconds."""
    _need(_is_number(seconds) and 0 <= seconds <= LATEST_S, f"{_shown(seconds)} is no time in seconds")
    return float(seconds)


def check_text(text: Any, what: str) -> str:
    """Check and return a text, such as an id; `what` names the text in messages."""
    _need(isinstance(text, str) and fits_utf8(text), f"{what} is {_shown(text)}, and is to be a text")
    return str(text)


def check_span(wall: Any) -> tuple[float, float]:
    """Check and return the start and the end of something, in seconds."""
    start_s, end_s = check_time(wall["start_s"]), check_time(wall["end_s"])
    _need(start_s <= end_s, f"it ends at {end_s} s, before it begins, at {start_s} s")
    return start_s, end_s


def check_header(event: Event) -> None:
    """Check the names, stages, options and memory sizes in a header."""
    for name in ("technique", "model", "clock"):
        check_text(event.get(name, ""), name)
    for name in ("stages", "options"):
        _need(isinstance(event.get(name, {}), dict), f"{name} has no names")
    for name in ("kv_capacity_tokens", "kv_bytes_per_token"):
        _number(event.get(name, 0), name, MOST if "tokens" in name else 2**53)


def check_request(event: Event) -> None:
    check_text(event["id"], "an id")
    check_time(event.get("wall", event)["arrival_s"])
    _number(event["prompt_tokens"], "the prompt's length")
    for name in ("max_new_tokens", "history_tokens"):
        _number(event.get(name, 0), name)
    _need(_is_number(event.get("priority", 0)), "the priority is no number")
    for name in ("after", "conversation", "group", "user", "text"):
        if event.get(name) is not None:
            check_text(event[name], name)


def check_answer(event: Event, known: Collection[str]) -> None:
    """Check an answer. `known` are the requests of earlier lines."""
    check_known([event["id"]], known, "an answer")
    text, ends = check_text(event["text"], "an answer"), event["ends"]
    whole = all(type(end) is int for end in ends) and list(ends) == sorted(ends)
    _need(whole and (not ends or (ends[0] >= 0 and ends[-1] <= len(text))), "ends are not places in the answer's text")


def check_known(names: Iterable[Any], known: Collection[str], what: str) -> None:
    """Check that all names are of requests in earlier lines.

    Args:
        known: the names of those requests.
        what: the part of the line that has the names, for messages.
    """
    for name in names:
        _need(isinstance(name, str) and name in known, f"{what} names {_shown(name)}, which no line before it asks for")


def check_reasons(event: Event) -> None:
    """Check the reasons of a step or a pause: three texts each."""
    for reason in event["reasons"]:
        code, name, text = reason
        for part in (code, name, text):
            check_text(part, "a part of a reason")


def check_step(event: Event, known: Collection[str]) -> None:
    """Check a step. `known` are the requests of earlier lines."""
    work, wall = event["work"], event["wall"]
    check_span(wall)
    _number(event["step"], "the number of the step")
    _number(event["worker"], "the worker", MOST_WORKERS)
    for name, start, stop, *cell in work:
        check_known([name], known, "work")
        _need(_whole(start) and _whole(stop) and start < stop, f"the work of {_shown(name)} is {_shown([start, stop])}")
        _need(len(cell) < 2 and all(isinstance(one, str) for one in cell), f"the work of {_shown(name)} is of no cell")
    for what in ("admitted", "evicted", "tokens", "finished"):
        check_known(event[what], known, what)
    check_known([name for name, *_ in event.get("reused", ())], known, "reused")
    check_reasons(event)
    check_text(event["phase"], "the phase")
    for reason in event["finished"].values():
        check_text(reason, "why one has finished")
    _need(all(isinstance(tokens, LISTS) for tokens in event["tokens"].values()), "tokens are no lists")
    for amount in ("computed", "idle"):
        _number(event[amount], amount)
    _number(event.get("discarded", 0), "discarded")
    _need(event["idle"] <= event["computed"], "more is idle than is computed")
    for what, amounts, count in (("kv", event["kv"], 4), ("kept", event.get("kept", (0, 0)), 2)):
        _need(len(amounts) == count and all(map(_whole, amounts)), f"{what} is {_shown(amounts)}")
    _check_places(event)
    _check_waves(event)
    sent = wall.get("transfers", {})
    for seconds in (wall.get("moving_s", 0.0), sent.get("exposed_s", 0.0)):
        check_time(seconds)
    for seconds in wall.get("on_host", ()):
        check_time(seconds)
    for way in ("to_host", "to_device"):
        num_bytes, seconds = sent.get(way, (0, 0.0))
        _number(num_bytes, way, 2**63)
        check_time(seconds)


def _check_places(event: Event) -> None:
    """Check the slots of places, shapes and moves."""
    _need(len(event["places"]) == len(event["work"]), "there is not one place for each piece of work")
    most = event["kv"][2] * MOST_LAYERS
    for place in event["places"]:
        tier = place[3] if len(place) == 4 else "device"
        _need(tier in TIERS, f"a place names {_shown(tier)} as a tier of memory")
        for first, count in runs_of_place(place):
            _check_run(first, count, MOST if tier == "host" else most)
    shape = event.get("shape")
    if shape is not None:
        _need(shape["kind"] in SHAPES, f"the shape is {_shown(shape['kind'])}")
        numbers = [shape[name] for name in SHAPES[shape["kind"]]]
        for number in numbers:
            _number(number, "a number of the shape")
        _need(numbers[-1] > 0, "the shape has rows without slots")
        _check_run(*run_of_shape(shape), event["kv"][2])
        if shape["kind"] == "Rectangle":
            columns = [shape.get("begin", 0), shape["start"], shape["stop"]]  # below 0 after an extension on the left
            _need(all(type(one) is int and abs(one) <= MOST for one in columns), f"columns are {_shown(columns)}")
        if shape["kind"] != "StateRows":
            _need(all(not isinstance(place[0], LISTS) or len(place) == 1 for place in event["places"]), "nodes in rows")
    for kind, source, target, count, *tiers in event["moves"]:
        check_text(kind, "the kind of a move")
        for first, tier in ((source, tiers[0]), (target, tiers[1])):
            _need(tier in TIERS, f"a move names {_shown(tier)} as a tier of memory")
            _check_run(first, count, MOST if tier == "host" else most)


def run_of_shape(shape: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first slot of a shape, and its number of slots.

    >>> run_of_shape({"kind": "Region", "offset": 2, "size": 3, "width": 16})
    (32, 48)
    """
    first, count, size = (shape[name] for name in SHAPES[shape["kind"]])
    return first * (size if shape["kind"] == "Region" else 1), count * (1 if shape["kind"] == "StateRows" else size)


def runs_of_place(place: Any) -> list[tuple[Any, Any]]:
    """Return a place's runs of adjacent slots, each as (first slot, length).

    A block table names only the blocks that are new in its line. Raises `Damaged` if a place has no runs, or a
    block is not a number.
    """
    if len(place) == 1:  # several runs
        _need(bool(place[0]), "a place has no slots")
        return [(first, count) for first, count in place[0]]
    if len(place) > 2:  # blocks
        kept, new, size, *_ = place
        for number in (kept, size, *new):
            _number(number, "a number of a place")
        return [(block * size, size) for block in new]
    first, second = place
    return [(slot, 1) for slot in (*first, second)] if isinstance(first, LISTS) else [(first, second)]


def _check_run(first: Any, count: Any, most: int) -> None:
    _number(first, "a slot", most)
    _number(count, "a number of slots", most)
    _need(first + count <= most, f"slots {first} to {first + count - 1} are not in memory, which has {most} at most")


def _check_waves(event: Event) -> None:
    """Check that waves and passes are ranges of work, and lanes lists of it."""
    most = len(event["work"])
    for wave in (*event["waves"], *event.get("passes", ())):
        start, stop = wave
        _need(_whole(start) and _whole(stop) and start <= stop <= most, f"a wave is {_shown(wave)}")
    for lane in event.get("lanes", ()):
        _need(all(_whole(one) and one < most for one in lane), f"a lane is {_shown(lane)}")


def _number(value: Any, what: str, most: int = MOST) -> None:
    _need(_whole(value, most), f"{what} is {_shown(value)}, and is to be a whole number from 0 to {most}")


def _whole(value: Any, most: int = MOST) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Damaged(what)
