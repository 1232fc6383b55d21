"""Checks the form of what a stage returns: its annotated type, waves, lanes."""

from __future__ import annotations

import inspect
import re
from functools import cache
from itertools import chain
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from minifuse.contracts.fault import Wrong, shown
from minifuse.core.plan import Place, Room, Shape, Span
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region, StateRows

PROTOCOLS = {Shape: Rectangle | Region | StateRows, Place: object, Room: object}
PLAIN = {int, str}


class Form(NamedTuple):
    """An annotated type, taken apart."""

    kind: Any  # the value's class; `UnionType` if `parts` are alternatives, `Literal` if they are values
    parts: tuple[Any, ...]  # the types of its items, or of its fields
    names: tuple[str, ...] = ()  # the names of its fields
    plain: bool = False  # whether it is a named tuple of texts and whole numbers


def check_form(value: Any, hint: Any, what: str = "") -> None:
    """Raise `Wrong` unless a value, and everything in it, has the annotated type.

    A list in place of a tuple is wrong, since it could change later. A number of numpy is wrong, since no trace can
    hold it.

    Args:
        what: names the value in the message.
    """
    if misfit := _misfit(value, hint):
        path, found, wanted = misfit
        if path:
            name = type(value).__name__
            what = f"{'an' if name[0] in 'AEIO' else 'a'} {name} whose {path.removeprefix('.')}"
        raise Wrong(f"{what} is {shown(found)}" if what else shown(found), f"give {_told(wanted)}")


@cache
def _form(hint: Any) -> Form:
    hint = PROTOCOLS.get(hint, hint)
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if parts or kind is Sequence:  # a Sequence is the engine's own: its fields are not checked
        return Form(UnionType if kind is Union else kind, parts)
    fields = get_type_hints(kind)
    plain = issubclass(kind, tuple) and PLAIN.issuperset(fields.values())
    return Form(kind, tuple(fields.values()), tuple(fields), plain)


def _misfit(value: Any, hint: Any) -> tuple[str, Any, Any] | None:
    """Find a part of a wrong type: its path, the part, the right type."""
    kind, parts, names, plain = _form(hint)
    if kind is UnionType:
        for part in parts:
            misfit = _misfit(value, part)
            if misfit is None or misfit[0]:  # the value has this class, even if something inside is wrong
                return misfit
        return "", value, hint
    if not _is(value, kind, parts):
        return "", value, hint
    if kind is Literal or not parts or (plain and (*map(type, value),) == parts):  # the usual case
        return None
    items = value if isinstance(value, tuple) else [getattr(value, name) for name in names]
    if kind is tuple and parts[-1] is ...:
        if parts[0] is int and {*map(type, items)} == {int}:
            return None
        parts = parts[:1] * len(items)
    if len(items) != len(parts):
        return "", value, hint
    for i, (item, part) in enumerate(zip(items, parts, strict=True)):
        if misfit := _misfit(item, part):
            path, found, wanted = misfit
            return f".{names[i]}{path}" if names else f"[{i}]{path}", found, wanted
    return None


def _is(value: Any, kind: Any, parts: tuple[Any, ...]) -> bool:
    """Return whether a value has this class. Numbers must be Python's own, not bools."""
    if kind is int or kind is float:
        return type(value) is int or (kind is float and isinstance(value, float))
    if kind is Literal:
        return isinstance(value, str) and value in parts
    return isinstance(value, kind)


def _told(hint: Any) -> str:
    """Write an annotation without module names.

    >>> _told(tuple[Span, ...]), _told(float | None)
    ('tuple[Span, ...]', 'float | None')
    """
    return re.sub(r"\w+\.", "", inspect.formatannotation(hint))


def check_cover(where: str, waves: tuple[Span, ...], total: int, kind: str = "waves") -> None:
    """Raise `Wrong` unless waves, if any, are consecutive ranges that cover `total` pieces."""
    starts, stops = [wave.start for wave in waves], [wave.stop for wave in waves]
    if waves and ([*starts, total] != [0, *stops] or stops != sorted(stops)):
        raise Wrong(f"{where}{shown(waves)}", f"{kind} are consecutive ranges that cover all {total}", "layout")


def check_passes(where: str, passes: tuple[Span, ...], waves: tuple[Span, ...], total: int) -> None:
    """Raise `Wrong` unless passes, if any, cover `total` pieces and divide no wave."""
    check_cover(where, passes, total, "passes")
    if not {one.stop for one in passes} <= {wave.stop for wave in waves or (Span(0, total),)}:
        raise Wrong(f"{where}{shown(passes)}", f"each wave is in one pass, and the waves are {shown(waves)}", "layout")


def check_lanes(where: str, lanes: tuple[tuple[int, ...], ...], total: int) -> None:
    """Raise `Wrong` unless lanes, if any, name each of `total` pieces once."""
    if lanes and sorted(chain.from_iterable(lanes)) != list(range(total)):
        raise Wrong(f"{where}{shown(lanes)}", f"name each of the {total} pieces of work once", "layout")
