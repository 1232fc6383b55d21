"""Makes stages from their classes, and refuses classes that cannot be stages (docs/stages.md)."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal

from minifuse.contracts.fault import Wrong, class_site, forgotten_base, is_own, method_site, raised, shown
from minifuse.contracts.form import check_form
from minifuse.core.errors import MachineError, UsageError

ATTRIBUTES: dict[str, tuple[tuple[str, Any, int], ...]] = {  # name, type, and the minimum of a whole number
    "batching": (
        ("workers", int, 1),
        ("depth", int, 1),
        ("granularity", Literal["cell", "operator"], 0),
        ("batch_sizes", tuple[int, ...], 0),
        ("token_budget", int | None, 1),
    ),
    "memory": (
        ("capacity", int, 1),
        ("host_capacity", int, 0),
        ("shared_capacity", int, 0),
        ("host_dtype", Literal["auto", "int8"], 0),
    ),
    "attention": (("tensors", str, 0), ("reference", str, 0)),
}
MOST_WORKERS = 1024
WORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


def make_stage(protocol: type[Any], cls: Any, *arguments: Any) -> Any:
    """Make a stage by calling its class with `arguments`.

    Args:
        protocol: the members that a stage of this kind must have.

    Raises:
        UsageError: the stage cannot be made, lacks a member, or refuses an option itself.
    """
    if is_own(cls):
        return cls(*arguments)
    kind, called = cls.kind, _called(protocol, cls)
    _check_spelling(cls, called)
    try:
        stage = cls(*arguments)
        _check_attributes(kind, stage, *arguments)
    except (UsageError, MachineError):
        raise
    except Exception as error:
        cause = forgotten_base(cls) if isinstance(error, AttributeError) else ""
        what = raised(cls, "__init__", error, cause).what
        if isinstance(error, Wrong):
            what = f"{method_site(cls, '__init__')} makes {error.what}"
        raise UsageError(f"The {kind} stage {cls.name!r} cannot be made: {what}.") from error
    for name, member in called.items():
        _check_signature(stage, name, member)
    return stage


def _check_attributes(kind: str, stage: Any, *arguments: Any) -> None:
    limits = {"workers": MOST_WORKERS, "depth": MOST_WORKERS, "capacity": arguments[0]}
    for name, hint, least in ATTRIBUTES[kind]:
        value, most = getattr(stage, name), limits.get(name, sys.maxsize)
        check_form(value, hint, f"a stage whose {name}")
        if isinstance(value, int) and not least <= value <= most:
            raise Wrong(f"a stage whose {name} is {value}", f"give a whole number from {least} to {most}")
        if hint is str and value and ":" not in value:  # the attribute names an attention's backend
            raise Wrong(f"a stage whose {name} is {value!r}", "give 'module:class'")


def _called(protocol: type[Any], cls: type[Any]) -> dict[str, Any]:
    """Return the methods that minifuse calls: those of the protocol and of minifuse's bases."""
    bases = [base for base in (*protocol.__mro__, *cls.__mro__) if is_own(base)]
    return {
        name: member
        for base in bases
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def _check_spelling(cls: type[Any], called: dict[str, Any]) -> None:
    """Raise `UsageError` if a method has nearly the name of a method that minifuse calls."""
    own = {name for base in cls.__mro__ if not is_own(base) for name in vars(base)}
    inherited = {name for base in cls.__mro__ if is_own(base) for name in vars(base)}
    for name in sorted(own - inherited - called.keys()):
        if name.startswith("_") or not inspect.isroutine(getattr(cls, name)):
            continue
        for meant in difflib.get_close_matches(name, called.keys() - own, 1, 0.8):
            if not name.startswith(meant):  # `proposed` is no misspelling of `propose`
                raise UsageError(f"{method_site(cls, name)} is never called: did you mean {meant!r}? Rename it.")


def _check_signature(stage: Any, name: str, called: Callable[..., Any]) -> None:
    """Raise `UsageError` unless a stage has this method and it takes the arguments of `called`."""
    cls, method = type(stage), getattr(stage, name)
    if not callable(method):
        what = f"{cls.__qualname__} ({class_site(cls)}) has {shown(method)} in place of the method {name!r}"
        raise UsageError(f"{what}: write it, see docs/stages.md.")
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # the method is not written in Python
    parameters = [*inspect.signature(called).parameters.values()][1:]
    words = [one.name for one in parameters if one.kind is WORD]
    needed = [one.name for one in parameters if one.kind is WORD and one.default is one.empty]
    many = [one.name.removesuffix("s") for one in parameters if one.kind is one.VAR_POSITIONAL]
    for given in (needed + many, words + many + many):  # the call with the fewest arguments, and with the most
        try:
            signature.bind(*given)
        except TypeError as error:
            call = f"{name}({', '.join(given)})"
            raise UsageError(
                f"{method_site(cls, name)} has the parameters {signature}, and is called as {call}: {error}."
            ) from None
