"""Declares options once, as fields of a dataclass.

    @dataclass(frozen=True)
    class Options:
        seed: Annotated[int, option("--seed", "of arrivals", "N", parse=whole(0))] = 0

    @takes(Options)
    def command(options: Options) -> int: ...

typer sees a command with an option for each field; the command receives the parsed values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from minifuse.io.parsing import MANY, check_word, parse_int

OptionsT = TypeVar("OptionsT")
Parse = Callable[[str, str], Any]  # (typed text, flag) -> value


def option(
    flag: str,
    help: str,
    metavar: str = "",
    *,
    panel: str | None = None,
    choices: Collection[str] = (),
    parse: Parse = lambda text, flag: text,
) -> Any:
    """Declare an option with a value."""

    def value(given: Any) -> Any:
        if not isinstance(given, str):  # the default parser
            return given
        if choices:
            check_word(given, flag, choices)
        return parse(given, flag)

    metavar = metavar or "|".join(choices)
    return typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel, parser=value)


def switch(flag: str, help: str, *, panel: str | None = None) -> Any:
    """Declare an option without a value."""
    return typer.Option(flag, help=help, rich_help_panel=panel)


def argument(metavar: str, help: str) -> Any:
    """Declare a positional argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


json_switch = partial(switch, "--json", "one JSON object on stdout")


@dataclass(frozen=True)
class JsonOptions:
    """The options of a command that takes only --json."""

    json: Annotated[bool, json_switch()] = False


def takes(
    options: type[OptionsT], without: Collection[str] = ()
) -> Callable[[Callable[[OptionsT], int]], Callable[..., int]]:
    """Decorate a command with a parameter for each field of its options.

    A subclass's own fields come before inherited ones. Fields in `without` get no parameter."""

    def decorate(command: Callable[[OptionsT], int]) -> Callable[..., int]:
        def typed(**given: Any) -> int:
            return command(options(**given))

        annotations = get_type_hints(options, include_extras=True)
        defaults = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]
        offered = sorted(annotations.keys() - {*without}, key=[*options.__annotations__, *annotations].index)
        hints = {name: Annotated[_kind(defaults[name]), annotations[name].__metadata__[0]] for name in offered}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in hints.items()
        ]
        typed.__name__, typed.__doc__, typed.__annotations__ = command.__name__, command.__doc__, hints
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return typed

    return decorate


def parsed(options: type[Any], name: str, text: str) -> Any:
    """Parse the text of an option's value, as the command line does."""
    return get_type_hints(options, include_extras=True)[name].__metadata__[0].parser(text)


def _kind(default: Any) -> Any:
    """Return the type that typer parses: a switch, several texts, or one text."""
    if isinstance(default, bool):
        return bool
    return list[str] if default == () else str | None


def whole(low: int = 1, high: int = MANY) -> Parse:
    """Make a parser of whole numbers from `low` to `high`."""
    return lambda text, flag: parse_int(text, flag, low, high)


def by_itself(parse: Callable[[str], Any]) -> Parse:
    """Make an option's parser from a function that takes only the text, not the flag."""
    return lambda text, flag: parse(text)
