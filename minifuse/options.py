"""Options of a stage: declared once as a frozen dataclass, then parsed, listed and explained.

    @dataclass(frozen=True)
    class Options:
        window: float = option(0.5, "longest wait for more requests, in seconds", minimum=0.0, unit="s")

`--set batching.window=200ms` becomes `parse_options("batching", Options, {"window": "200ms"})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from minifuse.core.errors import UsageError
from minifuse.io.parsing import LONGEST_S, MANY, did_you_mean, one_of, parse_duration

T = TypeVar("T")


class NoOptions:
    """The options of a stage without options."""


HOW: dict[str, Any] = {  # what `option` takes in addition to the help, with defaults
    "minimum": None,
    "maximum": None,
    "choices": (),
    "unit": "",  # "s" accepts 500ms and 2s
    "batch_size": False,  # it bounds how many requests are served at once: `--max-batch` sets it
    "of_evictions": False,  # it changes nothing in a run that evicts no sequence
    "offered": False,  # if it is None, the model that is served may offer a value
}


class Declared(NamedTuple):
    """An option of a stage, as it was declared."""

    options: type[Any]  # the class that has it
    name: str
    kind: type[Any]  # of its values, without None
    optional: bool  # whether it may be None
    default: Any
    how: Mapping[str, Any]  # its help, and all of `HOW`

    def accepts(self, value: Any) -> bool:
        """Tell whether the option takes this value."""
        try:
            _convert(self.name, self, value)
        except UsageError:
            return False
        return True

    @property
    def allowed(self) -> str:
        """Return the values that the option takes, as part of a sentence."""
        minimum, maximum = self.how["minimum"], self.how["maximum"]
        if self.how["choices"]:
            text = " or ".join(self.how["choices"])
        elif self.how["unit"] == "s":
            text = "a duration such as 500ms or 2s"
        else:
            text = {bool: "on or off", int: "a whole number", float: "a number"}.get(self.kind, "a word")
        if minimum is not None and maximum is not None:
            text += f" from {minimum:.15g} to {maximum:.15g}"
        elif minimum is not None:
            text += f", at least {minimum:.15g}"
        elif maximum is not None:
            text += f", at most {maximum:.15g}"
        return text + (", or none" if self.optional else "")


def wrong_options(options: Any) -> str | None:
    """Describe what is wrong with a class of options; return None if nothing is."""
    if options is NoOptions:
        return None
    example = "@dataclass(frozen=True), and in it `size: int = option(8, 'what it means')`"
    if not isinstance(options, type) or not is_dataclass(options):
        return f"are no dataclass: write {example}."
    undone = [name for base in options.__mro__ for name, value in vars(base).items() if isinstance(value, Field)]
    plain = [field.name for field in fields(options) if "help" not in field.metadata]
    if undone or plain:
        why = "without a type, or below no @dataclass of its own" if undone else "without option(...)"
        return f"have {(undone or plain)[0]!r} {why}: write {example}."
    if unknown := [name for field in fields(options) for name in field.metadata if name not in (*HOW, "help")]:
        return f"have an option with {unknown[0]!r}{did_you_mean(unknown[0], HOW)}: give {one_of(HOW)}."
    try:
        get_type_hints(options)
    except Exception as error:
        return f"have a type that is unknown ({error}): import it."
    return None


@cache
def declared_options(cls: Any) -> dict[str, Declared]:
    """Return the options of a stage, by name. Cached: compiling their types is slow."""
    declared: dict[str, Declared] = {}
    if cls is not NoOptions:
        hints = get_type_hints(cls)
        for field in fields(cls):
            types = get_args(hints[field.name]) or (hints[field.name],)
            kind = next(one for one in types if one is not type(None))
            how = {**HOW, **field.metadata}
            declared[field.name] = Declared(cls, field.name, kind, type(None) in types, field.default, how)
    return declared


def parse_options(stage: str, cls: type[T], given: Mapping[str, Any]) -> T:
    """Build `cls` from what was typed (or from values already of the right type).

    Raises:
        UsageError: an unknown option, or a value of the wrong type or out of range.
    """
    known = declared_options(cls)  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in known:
            allowed = f"give {one_of(known)}" if known else "it has none"
            raise UsageError(f"The {stage} has no option {name!r}{did_you_mean(name, known)}: {allowed}.")
        values[name] = _convert(f"The {name} of the {stage}", known[name], value)
    return cls(**values)


def offered(options: Any) -> dict[str, Any]:
    """Map each option that a model may fill in to its value; None: not given."""
    declared = declared_options(type(options))  # type: ignore[arg-type]
    return {name: getattr(options, name) for name, option in declared.items() if option.how["offered"]}


def _convert(name: str, declared: Declared, value: Any) -> Any:
    kind, how = declared.kind, declared.how
    if declared.optional and (value is None or value == "none"):
        return None
    wrong = UsageError(f"{name} is {value!r}: give {declared.allowed}.")
    try:
        if kind is bool:
            converted: Any = value if isinstance(value, bool) else {"on": True, "off": False}[value]
        elif how["unit"] == "s" and isinstance(value, str):
            converted = parse_duration(value)
        else:
            converted = kind(value)
    except (ValueError, KeyError, TypeError, UsageError):
        raise wrong from None
    if not isinstance(value, str) and converted != value:  # 2.5 is not a whole number
        raise wrong
    most = LONGEST_S if how["unit"] == "s" else MANY if kind is int else None
    if most is not None and not abs(converted) <= most:
        raise UsageError(f"{name} is {value!r}: give at most {most:.0f}{how['unit']}.")
    minimum, maximum, choices = how["minimum"], how["maximum"], how["choices"]
    outside = (minimum is not None and not converted >= minimum) or (maximum is not None and not converted <= maximum)
    if outside or (choices and converted not in choices):
        raise wrong
    return converted


@cache
def describe_options(cls: type) -> tuple[dict[str, Any], ...]:
    """Describe the options of a stage to users: name, default as typed, allowed, help."""
    return tuple(
        {
            "name": one.name,
            "default": f"{one.default:g}s" if one.how["unit"] == "s" and one.default is not None else one.default,
            "allowed": one.allowed,
            **{name: one.how[name] for name in ("help", "batch_size", "of_evictions")},
        }
        for one in declared_options(cls).values()
    )
