"""Whose mistake it is: where the code of a stage that is not minifuse's own lies, and the sentence that names it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from minifuse.errors import LawBroken, MinifuseError, StageFault

__all__ = [
    "Hung",
    "Wrong",
    "blame",
    "blamed",
    "class_site",
    "folder_of",
    "is_own",
    "last_line",
    "method_site",
    "raised",
    "shown",
]

PASSED = (StageFault, KeyboardInterrupt)  # whatever else a stage raises is its own
NOTED = (MinifuseError, LookupError, ValueError)  # of a request or a time, where others are of the code
LONGEST = 120  # characters of a value in a sentence


class Wrong(Exception):
    """What a stage's method returned is not allowed: what was found in it, what is allowed, and the law it breaks."""

    def __init__(self, found: str, allowed: str, law: str = "contract") -> None:
        super().__init__(found, allowed)
        self.found, self.allowed, self.law = found, allowed, law


class Hung(BaseException):
    """Raised where something does not return. A `BaseException`, for a stage that hangs may catch every `Exception`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__(patience_s)
        self.patience_s = patience_s


def is_own(cls: type[Any]) -> bool:
    """Whether a class is minifuse's own."""
    return cls.__module__.partition(".")[0] == "minifuse"


def shown(value: Any) -> str:
    """A value as a sentence shows it: on one line, cut if it is long, whatever its `repr` does."""
    if inspect.isgenerator(value):
        return "a generator (a function with a `yield` returns one)"
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine (an `async def` returns one)"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _code_of(member: Any) -> CodeType | None:
    """The code of what a class has under a name: a function, however it is decorated."""
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", getattr(member, "func", member))
    return getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None


def class_site(cls: type[Any]) -> str:
    """The file and the line of a class.

    >>> # "mine.py, line 12"
    """
    try:
        return f"{Path(inspect.getsourcefile(cls) or '?').name}, line {inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        codes = [code for member in vars(cls).values() if (code := _code_of(member))]
        return f"{Path(codes[0].co_filename).name}, line {codes[0].co_firstlineno}" if codes else cls.__module__


def folder_of(cls: type[Any]) -> Path | None:
    """The folder that a class's file lies in."""
    try:
        file = inspect.getfile(cls)
    except (OSError, TypeError):
        return None
    return Path(file).resolve().parent


def method_site(cls: type[Any], name: str) -> str:
    """A method of a class, with its file and line; of one that is inherited from minifuse, those of the class.

    >>> # "Mine.propose (mine.py, line 20)", "Mine.propose (inherited from QueuePolicy; mine.py, line 12)"
    """
    owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
    code = _code_of(vars(owner).get(name))
    method = f"{cls.__qualname__.rpartition('>.')[2]}.{name}"
    if is_own(owner):
        return f"{method} (inherited from {owner.__qualname__}; {class_site(cls)})"
    if code is None:
        return f"{method} ({class_site(cls)})"
    return f"{method} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def last_line(traceback: TracebackType | None, folders: Collection[Path]) -> str | None:
    """The last file and line in these folders that an error passed through; None: it passed through none.

    Installed packages below a folder, and minifuse itself, are not in it.
    """
    place = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != "minifuse" and _is_in(code.co_filename, folders):
            place = f"{Path(code.co_filename).name}, line {traceback.tb_lineno}, in {code.co_name}"
        traceback = traceback.tb_next
    return place


def _is_in(file: str, folders: Collection[Path]) -> bool:
    if file.startswith("<"):  # "<frozen importlib._bootstrap>" would be below the working directory
        return False
    path = Path(file).resolve()
    return any(
        path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts for folder in folders
    )


def raised(cls: type[Any], name: str, error: BaseException, note: str = "") -> StageFault:
    """The fault of a method that raised what it may not, or did not return.

    `note`: what is easily forgotten of this method, or the likely cause.
    """
    folder = folder_of(cls)
    place = last_line(error.__traceback__, () if folder is None else (folder,))
    if isinstance(error, Hung):
        where = f", and was at {place}" if place else ""
        return StageFault(f"{method_site(cls, name)} did not return within {error.patience_s:g} s{where}", "progress")
    text = " ".join(str(error).split()).rstrip(".")
    what = f"{method_site(cls, name)} raised {type(error).__name__}{f' ({text})' if text else ''}"
    what += f" at {place}" if place else ""
    return StageFault(f"{what}{f': {note}' if note else ''}", error.law if isinstance(error, LawBroken) else "contract")


def blame(
    cls: type[Any],
    name: str,
    error: BaseException,
    allowed: tuple[type[BaseException], ...] = (),
    note: str = "",
    cause: str = "",
) -> BaseException:
    """What is to be raised when a method of a stage, or a check of what it returned, raised `error`.

    `note` is what is easily forgotten of the method, and `cause` the likely cause, if it is known.

    That is the error itself if it is `allowed`, no mistake, or a fault already.
    """
    if isinstance(error, (*PASSED, *allowed)):
        return error
    if isinstance(error, Wrong):
        return StageFault(f"{method_site(cls, name)} returned {error.found}: {error.allowed}", error.law)
    return raised(
        cls, name, error, cause or (note if isinstance(error, NOTED) else "")
    )  # of SystemExit, too: a stage that calls exit() must not end the run so


@contextmanager
def blamed(cls: type[Any], name: str, allowed: tuple[type[BaseException], ...] = (), note: str = "") -> Iterator[None]:
    """A block in which a method of a stage runs, or in which what it returned is checked: see `blame`."""
    try:
        yield
    except BaseException as error:
        found = blame(cls, name, error, allowed, note)
        if found is error:
            raise
        raise found from (None if isinstance(error, Wrong) else error)
