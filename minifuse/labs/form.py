"""The form of a value that came as JSON, told as a type, and checked."""

from __future__ import annotations

import types
from typing import Any, get_args, get_origin

WHOLE = 1 << 63  # numbers from here on are larger than anything a lab has


def has_form(value: Any, form: Any) -> bool:
    """Whether a value is of this type: `list[tuple[int, int]]` are lists of lists of two whole numbers."""
    origin, parts = get_origin(form), get_args(form)
    if form is Any:
        return True
    if form is None or form is type(None):
        return value is None
    if origin is types.UnionType:
        return any(has_form(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(has_form(one, parts[0]) for one in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(parts) and all(map(has_form, value, parts))
    if origin is dict:
        return isinstance(value, dict) and all(has_form(one, parts[1]) for one in value.values())
    if isinstance(value, bool):
        return form is bool
    if isinstance(value, int):
        return form in (int, float) and -WHOLE < value < WHOLE
    return isinstance(value, form) and value == value  # NaN is no number, and every comparison with it is False


def told(form: Any, many: bool = False) -> str:
    """A form in words.

    >>> told(list[tuple[int, int]])
    'a list of lists of a whole number and a whole number'
    """
    names = {int: "whole number", float: "number", str: "text", bool: "True or False", None: "None", type(None): "None"}
    origin, parts = get_origin(form), get_args(form)
    if origin is list:
        return f"{'lists' if many else 'a list'} of {told(parts[0], many=True)}"
    if origin is tuple:
        return f"{'lists' if many else 'a list'} of {' and '.join(told(part) for part in parts)}"
    if origin is dict:
        return f"{'dictionaries' if many else 'a dictionary'} of {told(parts[1], many=True)}"
    if origin is types.UnionType:
        return " or ".join(told(part) for part in parts)
    name = names.get(form, "anything plain")
    if form in (bool, None, type(None)) or name == "anything plain":
        return name
    return f"{name}s" if many else f"a {name}"
