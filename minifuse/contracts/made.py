"""Makes stages of their classes, and refuses classes that cannot be stages (docs/stages.md)."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from minifuse.contracts.values import is_whole
from minifuse.core.errors import MachineError, UsageError
from minifuse.fault import class_site, forgotten_base, is_own, method_site, raised, shown
from minifuse.stages import PROTOCOLS, Kind

__all__ = ["make_stage"]

MOST_WORKERS = 1024
WORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


def make_stage(kind: Kind, cls: Any, *arguments: Any) -> Any:
    """Make a stage of its class, called with `arguments`.

    Raises:
        UsageError: the class cannot be made, or lacks something; or what it raised itself, of an option.
    """
    if is_own(cls):
        return cls(*arguments)
    _check_class(kind, cls)
    try:
        stage = cls(*arguments)
        wrong = next((found for found in _attributes(kind, stage, *arguments) if found), None)
    except (UsageError, MachineError):
        raise
    except Exception as error:
        cause = forgotten_base(cls) if isinstance(error, AttributeError) else ""
        what = raised(cls, "__init__", error, cause).what
        raise UsageError(f"The {kind} stage {cls.name!r} cannot be made: {what}.") from error
    site = method_site(cls, "__init__")
    for name in _called(kind, cls):
        if name in getattr(stage, "__dict__", ()):
            raise UsageError(
                f"{site} sets self.{name}, in place of the method that is called: write that as a method, "
                f"def {name}(self, ...)."
            )
    if wrong is not None:
        raise UsageError(f"The {kind} stage {cls.name!r} cannot be made: {site} {wrong}.")
    return stage


def _attributes(kind: Kind, stage: Any, *arguments: Any) -> Iterator[str | None]:
    """What is wrong of each attribute of a stage, or None."""
    if kind == "batching":
        for name in ("workers", "depth"):
            whole = f"give a whole number from 1 to {MOST_WORKERS}"
            yield _wrong(stage, name, lambda v: is_whole(v, 1) and v <= MOST_WORKERS, whole)
        yield _wrong(stage, "granularity", lambda v: v in ("cell", "operator"), "give 'cell' or 'operator'")
        budget = "give None or a whole number, at least 1"
        yield _wrong(stage, "token_budget", lambda v: v is None or is_whole(v, 1), budget)
    elif kind == "memory":
        given = arguments[0]
        whole = f"it was given {given} slots: give a whole number from 1 to {given}"
        yield _wrong(stage, "capacity", lambda v: is_whole(v, 1) and v <= given, whole)
        yield _wrong(stage, "host_capacity", is_whole, "give a whole number, 0 if nothing is kept on the host")
        in_turn = "give a whole number, 1 if each layer has its own part of the device"
        yield _wrong(stage, "layers_in_turn", lambda v: is_whole(v, 1), in_turn)
    else:
        named = "give 'module:class', or '' if there is none"
        for name in ("tensors", "reference"):
            yield _wrong(stage, name, lambda v: v == "" or (isinstance(v, str) and ":" in v), named)


def _wrong(stage: Any, name: str, right: Callable[[Any], bool], allowed: str) -> str | None:
    """What is wrong of an attribute of a stage; None: nothing."""
    try:
        value = getattr(stage, name)
    except AttributeError as error:
        hint = forgotten_base(type(stage))
        if isinstance(getattr(type(stage), name, None), property):
            return f"makes a stage whose property {name} raises AttributeError ({error}): {hint or allowed}"
        return f"makes a stage without the attribute {name!r}: {allowed}" + (f"; {hint}" if hint else "")
    return None if right(value) else f"makes a stage whose {name} is {shown(value)}: {allowed}"


def _called(kind: Kind, cls: type[Any]) -> dict[str, Any]:
    """The methods that minifuse calls: of the protocol, and of its own base classes."""
    bases = [PROTOCOLS[kind], *(base for base in cls.__mro__ if is_own(base))]
    return {
        name: member
        for base in bases
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


@lru_cache(256)
def _check_class(kind: Kind, cls: Any) -> None:
    """Raise `UsageError` if a method is missing, misspelt, or takes other arguments."""
    called, abstract = _called(kind, cls), sorted(getattr(cls, "__abstractmethods__", ()))
    own = {name for base in cls.__mro__ if not is_own(base) and base is not object for name in vars(base)}
    inherited = {name for base in cls.__mro__ if is_own(base) for name in vars(base)}
    for name in sorted(own):
        member = getattr(cls, name, None)
        if name.startswith("_") or name in called or isinstance(member, type) or name in inherited:
            continue
        for meant in difflib.get_close_matches(name, [*called, *abstract], 1, 0.85) if callable(member) else ():
            if (meant not in own or meant in abstract) and not name.startswith(meant):  # `proposed` is another word
                raise UsageError(f"{method_site(cls, name)} is never called: did you mean {meant!r}? Rename it.")
    if abstract:
        raise UsageError(
            f"{cls.__qualname__} ({class_site(cls)}) has no method {abstract[0]!r}, which every class like it must "
            "have: write it, see docs/stages.md."
        )
    for name in called.keys() & own:
        _check_signature(cls, name, called[name])


def _check_signature(cls: type[Any], name: str, called: Callable[..., Any]) -> None:
    """Raise `UsageError` unless a class has this method, with the arguments of `called`."""
    method = getattr(cls, name, None)
    if not callable(method):
        has = "has no method" if method is None else f"has a {type(method).__name__} in place of the method"
        raise UsageError(f"{cls.__qualname__} ({class_site(cls)}) {has} {name!r}: write it, see docs/stages.md.")
    static = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # of what is not written in Python
    for words, named in _calls(called):
        try:
            signature.bind(*([] if static else [None]), *words, **dict.fromkeys(named))
        except TypeError as error:
            call = ", ".join([*words, *(f"{word}=" for word in named)])
            raise UsageError(
                f"{method_site(cls, name)} has the parameters {signature}, and is called as {name}({call}): {error}."
            ) from None


def _calls(called: Callable[..., Any]) -> Iterator[tuple[list[str], list[str]]]:
    """The ways to call a method: arguments by position, and by name.

    >>> list(_calls(lambda self, sequence, *, growing=False: None))
    [(['sequence'], []), (['sequence'], ['growing'])]
    """
    parameters = [*inspect.signature(called).parameters.values()][1:]
    needed = [one.name for one in parameters if one.kind is WORD and one.default is one.empty]
    optional = [one.name for one in parameters if one.kind is WORD and one.default is not one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    many = [one.name.removesuffix("s") for one in parameters if one.kind is one.VAR_POSITIONAL]
    yield needed + many, []
    if many:
        yield needed + many + many, []
    if optional or named:
        yield needed + optional, named
