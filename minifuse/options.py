"""Options of a stage: declared once as a frozen dataclass, then settable from the command line, listed and explained.

    @dataclass(frozen=True)
    class Options:
        window: float = option(0.5, "longest wait for more requests, in seconds", minimum=0.0, unit="s")

`--set batching.window=200ms` becomes `parse_options("batching", Options, {"window": "200ms"})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from minifuse.core.errors import UsageError
from minifuse.parsing import LONGEST_S, MANY, did_you_mean, one_of, parse_duration

__all__ = ["HOW", "NoOptions", "accepts", "bare_type", "describe_options", "how", "offered", "parse_options"]

T = TypeVar("T")


class NoOptions:
    """The options of a stage that has none."""


HOW: dict[str, Any] = {  # what `option` may be told beside the help, and what holds otherwise
    "minimum": None,
    "maximum": None,
    "choices": (),
    "unit": "",  # "s" accepts 500ms and 2s
    "batch_size": False,  # it bounds how many requests are served at once, which is what `--max-batch` sets
    "of_evictions": False,  # it changes nothing in a run that evicts no sequence
    "offered": False,  # where it is None, the model that is served may offer a value
}


def how(declared: Field[Any]) -> dict[str, Any]:
    """How an option is parsed: what it was declared with, and what holds otherwise."""
    return {**HOW, **declared.metadata}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a class's fields. They are compiled from text, which takes long."""
    return get_type_hints(cls)


def parse_options(stage: str, cls: type[T], given: Mapping[str, Any]) -> T:
    """Build `cls` from what was typed (or from values already of the right type).

    Raises:
        UsageError: an unknown option, or a value of the wrong type or out of range.
    """
    known = {f.name: f for f in fields(cls)} if cls is not NoOptions else {}  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in known:
            allowed = f"give {one_of(known)}" if known else "it has none"
            raise UsageError(f"The {stage} has no option {name!r}{did_you_mean(name, known)}: {allowed}.")
        metadata = how(known[name])
        values[name] = _convert(f"The {name} of the {stage}", hints[name], value, metadata)
    return cls(**values)


def accepts(cls: Any, name: str, value: Any) -> bool:
    """Whether an option of a stage takes a value by itself."""
    try:
        _convert(name, _hints(cls)[name], value, next(how(f) for f in fields(cls) if f.name == name))
    except UsageError:
        return False
    return True


def bare_type(cls: Any, name: str) -> type[Any]:
    """The type of an option's values, without None."""
    hint = _hints(cls)[name]
    kind: type[Any] = next((t for t in get_args(hint) if t is not type(None)), hint)
    return kind


def offered(options: Any) -> dict[str, Any]:
    """The values of those options of a stage that a model may offer one for; None: nothing was given."""
    if isinstance(options, NoOptions):
        return {}
    return {f.name: getattr(options, f.name) for f in fields(options) if how(f)["offered"]}


def _convert(name: str, hint: Any, value: Any, metadata: Mapping[str, Any]) -> Any:
    optional = type(None) in get_args(hint)
    kind = next(t for t in get_args(hint) if t is not type(None)) if optional else hint
    if optional and (value is None or value == "none"):
        return None
    try:
        if kind is bool:
            converted: Any = value if isinstance(value, bool) else {"on": True, "off": False}[value]
        elif metadata["unit"] == "s" and isinstance(value, str):
            converted = parse_duration(value)
        else:
            converted = kind(value)
            if converted != (value if not isinstance(value, str) else converted):
                raise ValueError  # 2.5 is not a whole number
    except (ValueError, KeyError, TypeError, UsageError):
        raise UsageError(f"{name} is {value!r}: give {_allowed(kind, optional, metadata)}.") from None
    most = LONGEST_S if metadata["unit"] == "s" else MANY if kind is int else None
    if most is not None and not abs(converted) <= most:
        raise UsageError(f"{name} is {value!r}: give at most {most:.0f}{metadata['unit']}.")
    minimum, maximum, choices = metadata["minimum"], metadata["maximum"], metadata["choices"]
    outside = (minimum is not None and not converted >= minimum) or (maximum is not None and not converted <= maximum)
    if outside or (choices and converted not in choices):
        raise UsageError(f"{name} is {value!r}: give {_allowed(kind, optional, metadata)}.")
    return converted


def _allowed(kind: Any, optional: bool, metadata: Mapping[str, Any]) -> str:
    if metadata["choices"]:
        text = " or ".join(metadata["choices"])
    elif kind is bool:
        text = "on or off"
    elif metadata["unit"] == "s":
        text = "a duration such as 500ms or 2s"
    else:
        text = {int: "a whole number", float: "a number"}.get(kind, "a word")
    if metadata["minimum"] is not None and metadata["maximum"] is not None:
        text += f" from {metadata['minimum']:.15g} to {metadata['maximum']:.15g}"
    elif metadata["minimum"] is not None:
        text += f", at least {metadata['minimum']:.15g}"
    elif metadata["maximum"] is not None:
        text += f", at most {metadata['maximum']:.15g}"
    return text + (", or none" if optional else "")


def _as_typed(default: Any, metadata: Mapping[str, Any]) -> Any:
    """A default as it could be typed: a duration with its unit."""
    if default is MISSING:
        return None
    return f"{default:g}s" if metadata["unit"] == "s" and default is not None else default


@cache
def describe_options(cls: type) -> tuple[dict[str, Any], ...]:
    """Every option of a stage for `minifuse list` and `minifuse explain`: name, type, default, help."""
    if cls is NoOptions:
        return ()
    hints = _hints(cls)
    described = []
    for f in fields(cls):
        optional, kind = type(None) in get_args(hints[f.name]), bare_type(cls, f.name)
        described.append(
            {
                "name": f.name,
                "default": _as_typed(f.default, how(f)),
                "allowed": _allowed(kind, optional, how(f)),
                "help": f.metadata["help"],
                "batch_size": how(f)["batch_size"],
                "of_evictions": how(f)["of_evictions"],
            }
        )
    return tuple(described)
