"""Options declared once, as fields of a dataclass: flag, help, default, and the parser of the text that is typed.

    @dataclass(frozen=True)
    class Options:
        seed: Annotated[int, option("--seed", "of arrivals", "N", parse=whole(0), default="0")]

    @takes(Options)
    def command(options: Options) -> int: ...

typer sees a command with a text option for each field; the command receives the parsed values.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import typer

from minifuse.cli.streams import is_stdout
from minifuse.core.errors import UsageError
from minifuse.io.parsing import MANY, check_word, parse_int

OptionsT = TypeVar("OptionsT")
Parse = Callable[[Any, str], Any]  # the text, or texts, and the flag -> the value


class Declared(NamedTuple):
    """A field as typer sees it: type, default and description; and what makes its value of that."""

    kind: Any
    default: Any
    info: Any
    parse: Callable[[Any], Any]


def option(
    flag: str,
    help: str,
    metavar: str = "",
    *,
    panel: str | None = None,
    default: str | None = None,
    choices: Collection[str] = (),
    parse: Parse = lambda text, flag: text,
    repeatable: bool = False,
) -> Declared:
    """An option with a value: None if it is not given and has no default. A repeatable one parses a list of texts."""
    kind: Any = list[str] | None if repeatable else str | None
    info = typer.Option(flag, help=help, metavar=metavar or "|".join(choices), rich_help_panel=panel)

    def value(typed: Any) -> Any:
        if typed is None and not repeatable:
            return None
        if choices:
            check_word(typed, flag, choices)
        return parse(typed or [] if repeatable else typed, flag)

    return Declared(kind, default, info, value)


def switch(flag: str, help: str, *, panel: str | None = None) -> Declared:
    """An option that is given or not."""
    return Declared(bool, False, typer.Option(flag, help=help, rich_help_panel=panel), bool)


json_switch = partial(switch, "--json", "one JSON object on stdout")


@dataclass(frozen=True)
class JsonOptions:
    """The options of a command that shows what there is."""

    json: Annotated[bool, json_switch()]


def argument(metavar: str, help: str, *, many: bool = False) -> Declared:
    """What stands on a command line without a flag: a text or None, or with `many` a list of texts."""
    kind: Any = list[str] | None if many else str | None
    info = typer.Argument(metavar=metavar, help=help)
    return Declared(kind, None, info, lambda typed: typed or [] if many else typed)


def takes(
    options: type[OptionsT], without: Collection[str] = ()
) -> Callable[[Callable[[OptionsT], int]], Callable[..., int]]:
    """Turn a command of `options` into one with a parameter for each of its fields, those of a subclass first.

    The fields in `without` cannot be given, and have their defaults.
    """
    declared = _declared(options)

    def decorate(command: Callable[[OptionsT], int]) -> Callable[..., int]:
        def typed(**texts: Any) -> int:
            given = {**{name: one.default for name, one in declared.items()}, **texts}
            return command(options(**{name: one.parse(given[name]) for name, one in declared.items()}))

        offered = {name: one for name, one in declared.items() if name not in without}
        hints = {name: Annotated[one.kind, one.info] for name, one in offered.items()}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[name])
            for name, one in offered.items()
        ]
        typed.__name__, typed.__doc__, typed.__annotations__ = command.__name__, command.__doc__, hints
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return typed

    return decorate


def _declared(options: type[Any]) -> dict[str, Declared]:
    """What the fields are declared as, those of a subclass first."""
    annotations = get_type_hints(options, include_extras=True)
    own_first = sorted(annotations, key=lambda name: name not in options.__annotations__)
    return {name: annotations[name].__metadata__[0] for name in own_first}


def whole(low: int = 1, high: int = MANY) -> Parse:
    """A parser of whole numbers from `low` to `high`."""
    return lambda text, flag: parse_int(text, flag, low, high)


def by_itself(parse: Callable[[str], Any]) -> Parse:
    """A parser whose refusals name what they are about without the flag."""
    return lambda text, flag: parse(text)


@contextmanager
def _refused_unless_written(text: str, flag: str, cannot: str, give: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{flag} is {text!r}, which cannot be {cannot} ({reason}): give {give} that exists and that you may write "
            "to."
        ) from None


def writable_file(text: str, flag: str) -> Path:
    """A parser: the path of a file that can be written; opening it is the only sure test.

    It is a file of its own: neither standard output, nor a pipe with a name, which waits until it is read.
    """
    path = Path(text)
    if is_stdout(path):
        raise UsageError(f"{flag} is {text!r}, which is standard output: give - for that, or a file of its own.")
    if path.is_fifo() and path.parent != Path("/dev/fd"):  # where shells put the pipes that they have opened
        raise UsageError(f"{flag} is {text!r}, a pipe, which waits until it is read: give a file, or - and a |.")
    with _refused_unless_written(text, flag, "written", "a file in a folder"):
        new = not os.path.lexists(path)
        path.open("a").close()
        if new:
            path.unlink()
        elif path.is_file():
            _try_folder(path.resolve().parent)  # what replaces it is made beside it
    return path


STDOUT: Literal["-"] = "-"


def file_or_stdout(text: str, flag: str) -> Path | Literal["-"]:
    """A parser: `STDOUT`, or the path of a file that can be written."""
    return STDOUT if text == STDOUT else writable_file(text, flag)


def writable_folder(text: str, flag: str) -> Path:
    """A parser: a folder that exists and can be written to."""
    with _refused_unless_written(text, flag, "written to", "a folder"):
        _try_folder(Path(text))
    return Path(text)


def _try_folder(folder: Path) -> None:
    """Raise `OSError` unless files can be made in a folder: making one is the only sure test."""
    import tempfile

    tempfile.TemporaryFile(dir=folder).close()


def folder_to_be(text: str, flag: str) -> Path:
    """A parser: a folder that can be written to, or a path where there is nothing yet."""
    return writable_folder(text, flag) if os.path.lexists(text) else Path(text)
