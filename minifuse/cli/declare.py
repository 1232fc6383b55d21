"""Options declared once, as fields of a dataclass: flag, help, default, and the parser of what is typed.

    @dataclass(frozen=True)
    class Options:
        seed: int = option("--seed", "of arrivals", "N", parse=whole(0), default="0")

    @takes(Options)
    def command(options: Options) -> int: ...

typer sees a command with one text option for each field; the command receives their parsed values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Annotated, Any, TypeVar

import typer

from minifuse.errors import UsageError
from minifuse.parsing import did_you_mean, one_of, parse_int

__all__ = ["DTYPES", "MANY", "JsonFlag", "argument", "choice", "option", "switch", "takes", "whole"]

OptionsT = TypeVar("OptionsT")
Parse = Callable[[Any, str], Any]  # the text, or texts, and the flag -> the value

MANY = 2**31 - 1
DTYPES = ("float32", "float64", "bfloat16", "float16")

JsonFlag = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]


def option(
    flag: str,
    help: str,
    metavar: str,
    *,
    panel: str = "",
    default: str | None = None,
    parse: Parse = lambda text, flag: text,
    repeatable: bool = False,
) -> Any:
    """An option with a value: None if it is not given and has no default. A repeatable one parses a list of texts."""
    declared = typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel or None)
    kind: Any = list[str] | None if repeatable else str | None if default is None else str

    def value(typed: Any) -> Any:
        return parse(typed or [], flag) if repeatable else None if typed is None else parse(typed, flag)

    return _field(declared, kind, default, value)


def switch(flag: str, help: str, *, panel: str = "") -> Any:
    """An option that is given or not."""
    return _field(typer.Option(flag, help=help, rich_help_panel=panel or None), bool, False, lambda typed: typed)


def argument(metavar: str, help: str, *, many: bool = False) -> Any:
    """What stands on a command line without a flag: a text or None, or with `many` a list of texts."""
    declared = typer.Argument(metavar=metavar, help=help)
    kind: Any = list[str] | None if many else str | None
    return _field(declared, kind, None, lambda typed: typed or [] if many else typed)


def _field(declared: Any, kind: Any, default: Any, parse: Callable[[Any], Any]) -> Any:
    return field(metadata={"annotation": Annotated[kind, declared], "default": default, "parse": parse})


def takes(options: type[OptionsT]) -> Callable[[Callable[[OptionsT], int]], Callable[..., int]]:
    """Turn a command of `options` into one with a parameter for each of its fields, those of a subclass first."""

    def own_first(f: Field[Any]) -> bool:
        return f.name not in options.__annotations__

    declared = sorted(fields(options), key=own_first)  # type: ignore[arg-type]

    def decorate(command: Callable[[OptionsT], int]) -> Callable[..., int]:
        def typed(**texts: Any) -> int:
            return command(options(**{f.name: f.metadata["parse"](texts[f.name]) for f in declared}))

        parameters = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for f in declared
            for annotation, default in [(f.metadata["annotation"], f.metadata["default"])]
        ]
        typed.__name__, typed.__doc__ = command.__name__, command.__doc__
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return typed

    return decorate


def whole(low: int = 1, high: int = MANY) -> Parse:
    """A parser of whole numbers from `low` to `high`."""
    return lambda text, flag: parse_int(text, flag, low, high)


def choice(*allowed: str) -> Parse:
    """A parser of one of these words."""

    def parse(text: str, flag: str) -> str:
        if text not in allowed:
            raise UsageError(f'{flag} is "{text}"{did_you_mean(text, allowed)}: give {one_of(allowed)}.')
        return text

    return parse
