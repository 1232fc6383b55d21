"""Finds whose mistake an error is, and names the stage's class, method and line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any

from minifuse.core.errors import (
    LawBroken,
    MachineError,
    MinifuseError,
    RequestRefused,
    StageFault,
    UsageError,
    WrongReturn,
)

NOTED = (MinifuseError, LookupError, ValueError)  # errors about a request or a time; others are about code
NOTES = {  # method -> a hint at what is easily forgotten about the method
    "propose": "what cannot be done now waits, with a Reason",
    "release": "it is called for one that runs, one that waits, and one that was refused and never admitted",
    "missing": "it is asked of requests that wait, too",
}
ALLOWED: dict[str, tuple[type[BaseException], ...]] = {  # method -> errors that it may raise
    "check": (RequestRefused, UsageError, MachineError),
    "receive": (RequestRefused,),
    "backend": (UsageError, MachineError),
    "check_integrity": (LawBroken,),
}
LONGEST = 120  # characters of a value in a sentence


class Wrong(LawBroken):
    """A stage returned what `law` forbids: `found`, where `allowed` says what to return."""

    def __init__(self, found: str, allowed: str, law: str = "contract") -> None:
        super().__init__(law, f"{found}: {allowed}")


class Hung(BaseException):
    """A call did not return. A `BaseException`, since a stage may catch every `Exception`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__(patience_s)
        self.patience_s = patience_s


def is_own(cls: type[Any]) -> bool:
    """Return whether a class is minifuse's own."""
    return cls.__module__.partition(".")[0] == "minifuse"


def shown(value: Any) -> str:
    """Write a value on one line, shortened if long, even if its `repr` raises."""
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
    """Return the code of a function in a class, however it is decorated, or None."""
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", getattr(member, "func", member))
    return getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None


def class_site(cls: type[Any]) -> str:
    """Return the file and the line of a class.

    >>> # "mine.py, line 12"
    """
    try:
        return f"{Path(inspect.getsourcefile(cls) or '?').name}, line {inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        codes = [code for member in vars(cls).values() if (code := _code_of(member))]
        return f"{Path(codes[0].co_filename).name}, line {codes[0].co_firstlineno}" if codes else cls.__module__


def method_site(cls: type[Any], name: str) -> str:
    """Name a method with its file and line; the class's line if minifuse defines it.

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
    """Return the innermost line in these folders that an error passed through, or None.

    Packages installed below a folder do not count, nor does minifuse itself.
    """
    place = None
    for frame, line in walk_tb(traceback):
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != "minifuse" and _is_in(file, folders):
            place = f"{Path(file).name}, line {line}, in {frame.f_code.co_name}"
    return place


def _is_in(file: str, folders: Collection[Path]) -> bool:
    if file.startswith("<"):  # "<frozen importlib._bootstrap>" would be taken for a file in the working directory
        return False
    path = Path(file).resolve()
    return any(
        path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts for folder in folders
    )


def raised(cls: type[Any], name: str, error: BaseException, note: str = "") -> StageFault:
    """Make the fault of a method that raised a forbidden error, or hung.

    Args:
        note: a hint at the likely cause, or at what is easily forgotten about this method.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    place = last_line(error.__traceback__, () if file is None else (Path(file).resolve().parent,))
    if isinstance(error, Hung):
        where = f", and was at {place}" if place else ""
        return StageFault(f"{method_site(cls, name)} did not return within {error.patience_s:g} s{where}", "progress")
    text = " ".join(str(error).split()).rstrip(".")
    what = f"{method_site(cls, name)} raised {type(error).__name__}{f' ({text})' if text else ''}"
    what += f" at {place}" if place else ""
    return StageFault(f"{what}{f': {note}' if note else ''}", error.law if isinstance(error, LawBroken) else "contract")


def blamed(error: BaseException, *stages: Any) -> StageFault | None:
    """Return a fault that names the user's stage that raised an error, or None.

    The fault names the innermost method that is written in the stage's file, otherwise the outermost that the stage
    inherits. An error that the method may raise is no fault.
    """
    if isinstance(error, (StageFault, KeyboardInterrupt)):  # any other error that a stage raises is the stage's fault
        return None
    if isinstance(error, WrongReturn):
        site = method_site(type(error.stage), error.method)
        return StageFault(f"{site} returned {shown(error.value)}: {error.allowed}")
    modules = {type(stage).__module__ for stage in stages if not is_own(type(stage))}
    written = inherited = None
    for frame, _ in walk_tb(error.__traceback__):
        cls = type(frame.f_locals.get("self"))
        if cls.__module__ in modules and (name := _name_of(frame.f_code, cls)):
            if frame.f_globals.get("__name__") == cls.__module__:
                written = cls, name
            inherited = inherited or (cls, name)
    method = written or inherited
    if method is None or isinstance(error, ALLOWED.get(method[1], ())):
        return None
    cls, name = method
    note = NOTES.get(name, "") if isinstance(error, NOTED) else ""
    if isinstance(error, AttributeError) and type(error.obj) is cls:
        note = forgotten_base(cls) or note
    return raised(cls, name, error, note)


@contextmanager
def returned_by(stage: Any, method: str) -> Iterator[None]:
    """Run a block of checks; turn a `Wrong` into a `StageFault` that names the method."""
    try:
        yield
    except Wrong as wrong:
        site = method_site(type(stage), method)
        raise StageFault(f"{site} returned {wrong.what}", wrong.law) from None


def call_check(stage: Any, *arguments: Any) -> None:
    """Call a stage's `check`. Raise `StageFault` if it returns something instead of raising."""
    result = stage.check(*arguments)
    if result is not None:
        with returned_by(stage, "check"):
            raise Wrong(shown(result), "it raises what it refuses with, and returns nothing")


@contextmanager
def blaming(*stages: Any) -> Iterator[None]:
    """Run a block that calls stages; turn errors of users' stages into `StageFault`."""
    try:
        yield
    except BaseException as error:  # this includes SystemExit: a stage that calls exit() must not end the run
        if fault := blamed(error, *stages):
            raise fault from error
        raise


def _name_of(code: CodeType, cls: type[Any]) -> str | None:
    """Return the name under which a class has the method with this code, or None."""
    names = [code.co_name, *(name for base in cls.__mro__ for name in vars(base))]
    return next((name for name in names if _code_of(getattr(cls, name, None)) is code), None)


def forgotten_base(cls: type[Any]) -> str:
    """Return a hint that an `__init__` does not call its base's; "" if it does."""
    owner, *bases = (base for base in cls.__mro__ if "__init__" in vars(base))
    code = getattr(vars(owner)["__init__"], "__code__", None)
    if code is None or is_own(owner) or bases[0] is object or {"super", "__init__"} & {*code.co_names}:
        return ""
    return f"its __init__ does not call that of {bases[0].__qualname__}: begin it with super().__init__(...)"
