"""Traces with one value changed at random, as by a slip of an editor or of a disk."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

from minifuse.trace.log import Event

__all__ = ["WRONG", "damaged", "paths"]

WRONG: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**12, 10**400, math.nan, math.inf, -1e300, "", "x", "\ud800")
WRONG += ([], [[1]], {}, {"a": 1})


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from paths(value[key], (*path, key))


def damaged(events: list[Event], draw: random.Random) -> tuple[str, str]:
    """The lines of a trace in which one value is missing, is another of the trace, or is nonsense; and which."""
    changed = copy.deepcopy(events)
    places = [path for path in paths(changed) if len(path) > 1]
    number = draw.randrange(len(events))  # of the line; each is as likely, however long it is
    places = [path for path in places if path[0] == number]
    path = draw.choice(places)
    inside: Any = changed
    for key in path[:-1]:
        inside = inside[key]
    other: Any = events
    for key in draw.choice(list(paths(events))):
        other = other[key]
    how = draw.choice(("missing", "other", "wrong", "wrong"))
    value = other if how == "other" else draw.choice(WRONG)
    if how == "missing":
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return "".join(json.dumps(event) + "\n" for event in changed), f"{path}: {how} {value!r:.60}"
