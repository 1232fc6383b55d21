"""Finds where to look after a broken law: methods, and what to read."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import minifuse
from minifuse.cli.plugin import plugin_files
from minifuse.core.errors import LawBroken, WrongReturn
from minifuse.stages import KINDS, Kind, stage
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing.statements import OWN_LAWS, statement

if TYPE_CHECKING:
    from minifuse.testing.observation import Observation


HOME = Path(minifuse.__file__).parent.parent
MOST_PLACES = 3


class Place(NamedTuple):
    """A place to look at: a method of a stage, its file and line."""

    method: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.method}  ({self.file}, line {self.line})"


def look_at(broken: LawBroken, kinds: list[Kind]) -> list[Place]:
    """Find the methods that should keep a law, or the line that raised.

    Args:
        kinds: the kind of the stage under test, one or more if its name is shared; empty for a technique.
    """
    seen: Observation | None = broken.seen
    if seen is None:
        return []
    methods, cause = statement(broken.law).methods, broken.__cause__
    likely = [*methods] if kinds else [*methods][:2]
    classes = {cls: kind for kind in likely if kind in (kinds or KINDS) for cls in _halves(kind, seen.case.row)}
    if isinstance(cause, WrongReturn) and (place := _method(type(cause.stage), cause.method)):
        return [place]
    bases = [base for cls in classes for base in cls.__mro__]
    if cause is not None and (raised := _raised(cause, bases)):
        return [raised]
    raised = _raised(broken, classes)
    found = [] if raised is None else [raised]
    for cls, kind in classes.items():
        names = methods[kind]
        written = [name for name in names if name in vars(cls)]
        called = [other for name in names if name not in written for other in _calls(cls, name, set())]
        own = dict.fromkeys([*written, *(name for name in called if name in vars(cls))])
        places = [place for name in own or names if (place := _method(cls, name)) is not None]
        if own:
            found += places if written else [_class(cls), *places]
        elif not found:  # show at least what the likeliest stage inherits
            found += [_class(cls), *places[:1]] if places else []
    return found[:MOST_PLACES]


def _halves(kind: str, row: Technique) -> list[type[Any]]:
    """Return a stage's class; for an attention, also the class that computes with tensors."""
    cls = stage(kind, row.stages[kind])  # type: ignore[index, arg-type]  # one of KINDS
    if kind != "attention" or not cls.tensors:
        return [cls]
    module, _, name = cls.tensors.partition(":")
    return [cls, getattr(importlib.import_module(module), name)]


def _method(cls: type[Any], name: str) -> Place | None:
    """Find where a method is defined; None if it is not written in Python."""
    owner = next((owner for owner in cls.__mro__ if name in vars(owner)), None)
    held: Any = None if owner is None else vars(owner)[name]
    function: Any = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if owner is None or code is None:
        return None
    return Place(f"{owner.__name__}.{name}", _file(code.co_filename), code.co_firstlineno)


def _calls(cls: type[Any], name: str, seen: set[str]) -> Iterator[str]:
    """Yield the methods of a class that its method `name` calls, directly or indirectly."""
    function = inspect.unwrap(getattr(cls, name, None) or object)
    for other in getattr(getattr(function, "__code__", None), "co_names", ()):
        if other not in seen and callable(getattr(cls, other, None)):
            seen.add(other)
            yield other
            yield from _calls(cls, other, seen)


def _class(cls: type[Any]) -> Place:
    return Place(f"class {cls.__name__}", _file(inspect.getsourcefile(cls) or ""), inspect.getsourcelines(cls)[1])


def _raised(error: BaseException, classes: Iterable[type[Any]]) -> Place | None:
    """Return an error's innermost line in the files of these classes or of plugins."""
    files = {getattr(sys.modules[cls.__module__], "__file__", None) for cls in classes}
    files |= {*map(str, plugin_files())}
    place, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename in files and code.co_name != "check_integrity":  # skips a memory's check of its own state
            place = Place(code.co_qualname, _file(code.co_filename), traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def _file(name: str) -> str:
    path = Path(name)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else path.name


def read(law: str, row: Technique | None) -> list[str]:
    """List what to read about a law: its page, and a shipped technique's paper."""
    if law in OWN_LAWS:
        own = OWN_LAWS[law]
        return [str(Place(own.function.__name__, _file(own.file), own.line))]
    page = statement(law).read
    found = [page if page.startswith("docs/laws.md") else f"docs/laws.md, and {page}"]
    known = None if row is None else TECHNIQUES.get(row.name)
    return found + [f"{known.paper}, {known.section}" for known in [known] if known is not None and known.paper != "-"]
