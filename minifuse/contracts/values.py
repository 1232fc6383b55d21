"""Checks of the values that a stage's methods return: tuples, times, reasons, ranges."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import chain
from typing import Any

from minifuse.core.plan import Reason, Span
from minifuse.fault import Wrong, shown

__all__ = ["check_cover", "check_lanes", "check_reason", "check_time", "check_tuple", "is_whole"]


def is_whole(value: Any, minimum: int = 0) -> bool:
    """Whether it is an int of Python's, which a trace can hold; no bool."""
    return type(value) is int and value >= minimum


def check_tuple(where: str, value: Any, kind: type[Any] | tuple[type[Any], ...], allowed: str) -> None:
    """Raise `Wrong` unless it is a tuple of this kind: a list could change later."""
    if type(value) is not tuple:
        raise Wrong(f"{where}{shown(value)}", f"give a tuple of {allowed}")
    for i, item in enumerate(value):
        if not isinstance(item, kind):
            raise Wrong(f"{where}[..] whose item {i} is {shown(item)}", f"give a tuple of {allowed}")


def check_time(where: str, value: Any, now: float) -> None:
    """Raise `Wrong` unless a value is None or a finite time later than now."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= now
    ):
        raise Wrong(f"{where}{shown(value)}", f"give None, or a finite time later than now, which is {now:g} s")


def check_reason(where: str, reason: Any, names: Collection[str]) -> None:
    """Raise `Wrong` unless it is a reason, of one of these sequences."""
    if not isinstance(reason, Reason):
        raise Wrong(
            f"{where}{shown(reason)}", "a reason is Reason(code, sequence.id, text), and None where there is none"
        )
    if not all(isinstance(part, str) and part for part in reason):
        words = "code, sequence and text of a Reason are words: give sequence.id"
        raise Wrong(f"{where}{shown(reason)}", words, "reasons")
    if reason.sequence not in names:
        known = f"{min(names)!r}" if len(names) == 1 else "a request that was received and has not been released"
        raise Wrong(f"{where}{shown(reason)}", f"the sequence of this Reason is the id of {known}")


def check_cover(where: str, waves: tuple[Span, ...], count: int) -> None:
    """Raise `Wrong` unless these waves are consecutive ranges that cover `count` pieces of work."""
    check_tuple(where, waves, Span, "Span(start, stop)")
    reached = 0
    for wave in waves:
        if not is_whole(wave.start) or not is_whole(wave.stop) or wave.start != reached or wave.stop < wave.start:
            break
        reached = wave.stop
    else:
        if reached == count or not waves:
            return
    raise Wrong(
        f"{where}{shown(waves)}", f"waves are consecutive ranges that cover the {count} pieces of work", "layout"
    )


def check_lanes(where: str, lanes: tuple[tuple[int, ...], ...], count: int) -> None:
    """Raise `Wrong` unless lanes, if any, name each of `count` pieces of work once."""
    check_tuple(where, lanes, tuple, "tuples of indices of the work")
    if lanes and sorted(chain.from_iterable(lanes), key=repr) != sorted(range(count), key=repr):
        raise Wrong(f"{where}{shown(lanes)}", f"name each of the {count} pieces of work once", "layout")
