"""What the contracts of all kinds of stages are made of: how methods are called, and checks of what they return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from minifuse.errors import UsageError
from minifuse.fault import Wrong, class_site, is_own, method_site, shown
from minifuse.plan import Reason
from minifuse.work import Span

__all__ = [
    "Contract",
    "Method",
    "check_attribute",
    "check_cover",
    "check_lanes",
    "check_nothing",
    "check_reason",
    "check_signature",
    "check_time",
    "check_tuple",
    "forgotten_base",
    "is_whole",
]


class Method(NamedTuple):
    """How a method is called, what it may raise, and what is easily forgotten of it.

    Each of `calls` names the arguments of one call: those with `=` by name.
    """

    calls: tuple[str, ...]
    raises: tuple[type[BaseException], ...] = ()
    note: str = ""


class Contract:
    """The contract of one stage: for each of its methods one of the same name.

    It is called with the stage, what the stage's method returned, and the arguments; and returns what the caller gets.
    What the stage was told is remembered here: a stage's own attributes stay as they are. `before_` and the method's
    name, if there is one, is called with the arguments before.

    Raises:
        Wrong: that may not be returned.
    """

    methods: ClassVar[dict[str, Method]]  # of the protocol
    hooks: ClassVar[dict[str, Method]] = {}  # of a base class of minifuse's own
    pure: ClassVar[frozenset[str]] = frozenset()  # methods that nothing is remembered of: checked wherever called from

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.inside = False  # one of its methods runs: those that the stage itself calls meanwhile are its own affair

    def made(self, stage: Any, *arguments: Any) -> None:
        """The stage has been made of these arguments: look at its attributes."""


def is_whole(value: Any, minimum: int = 0) -> bool:
    """Whether it is an int, and no bool and no number of another library, which could not be written to a trace."""
    return type(value) is int and value >= minimum


def forgotten_base(cls: type[Any]) -> str:
    """What is likely the cause of a missing attribute: an `__init__` that does not call its base class's; else ""."""
    owner, *bases = (base for base in cls.__mro__ if "__init__" in vars(base))
    code = getattr(vars(owner)["__init__"], "__code__", None)
    if code is None or is_own(owner) or bases[0] is object or {"super", "__init__"} & {*code.co_names}:
        return ""
    return f"its __init__ does not call that of {bases[0].__qualname__}: begin it with super().__init__(...)"


def check_attribute(stage: Any, name: str, right: Callable[[Any], bool], allowed: str) -> None:
    """Raise `Wrong` unless an attribute of a stage is right."""
    value = getattr(stage, name, ...)
    if value is ... or not right(value):
        if value is ...:
            raise Wrong(f"no stage with the attribute {name!r}", forgotten_base(type(stage)) or allowed)
        raise Wrong(f"a stage whose {name} is {shown(value)}", allowed)


def check_nothing(result: Any, what: str = "it must return nothing") -> None:
    """Raise `Wrong` unless a method without a result returned None."""
    if result is not None:
        raise Wrong(shown(result), what)


def check_tuple(where: str, value: Any, kind: type[Any] | tuple[type[Any], ...], allowed: str) -> None:
    """Raise `Wrong` unless it is a tuple of this kind: neither a list, which could change later, nor a generator."""
    if type(value) is not tuple:
        raise Wrong(f"{where}{shown(value)}", f"give a tuple of {allowed}")
    for i, item in enumerate(value):
        if not isinstance(item, kind):
            raise Wrong(f"{where}[..] whose item {i} is {shown(item)}", f"give a tuple of {allowed}")


def check_time(where: str, value: Any, now: float) -> None:
    """Raise `Wrong` unless a value is None or a finite time later than now."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= now
    ):
        raise Wrong(f"{where}{shown(value)}", f"give None, or a finite time later than now, which is {now:g} s")


def check_reason(where: str, reason: Any, names: Collection[str]) -> None:
    """Raise `Wrong` unless it is a reason, of one of these sequences."""
    if not isinstance(reason, Reason):
        raise Wrong(
            f"{where}{shown(reason)}", "a reason is Reason(code, sequence.id, text), and None where there is none"
        )
    if not all(isinstance(part, str) and part for part in reason):
        raise Wrong(f"{where}{shown(reason)}", "code, sequence and text of a Reason are words: give sequence.id")
    if reason.sequence not in names:
        known = f"{min(names)!r}" if len(names) == 1 else "a request that was received and has not been released"
        raise Wrong(f"{where}{shown(reason)}", f"the sequence of this Reason is the id of {known}")


def check_cover(where: str, waves: tuple[Span, ...], count: int) -> None:
    """Raise `Wrong` unless these waves are consecutive ranges that cover `count` pieces of work."""
    check_tuple(where, waves, Span, "Span(start, stop)")
    reached = 0
    for wave in waves:
        if not is_whole(wave.start) or not is_whole(wave.stop) or wave.start != reached or wave.stop < wave.start:
            break
        reached = wave.stop
    else:
        if reached == count or not waves:
            return
    raise Wrong(
        f"{where}{shown(waves)}", f"waves are consecutive ranges that cover the {count} pieces of work", "layout"
    )


def check_lanes(where: str, lanes: tuple[tuple[int, ...], ...], count: int) -> None:
    """Raise `Wrong` unless these lanes, if there are any, name each of `count` pieces of work once."""
    check_tuple(where, lanes, tuple, "tuples of indices of the work")
    if lanes and sorted(chain.from_iterable(lanes), key=repr) != sorted(range(count), key=repr):
        raise Wrong(f"{where}{shown(lanes)}", f"name each of the {count} pieces of work once", "layout")


def check_signature(cls: type[Any], name: str, calls: Iterable[str]) -> None:
    """Raise `UsageError` unless a class has this method, which takes what it is called with."""
    method = getattr(cls, name, None)
    if not callable(method):
        has = "has no method" if method is None else f"has a {type(method).__name__} in place of the method"
        raise UsageError(f"{cls.__qualname__} ({class_site(cls)}) {has} {name!r}: write it, see docs/stages.md.")
    static = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # of what is not written in Python
    for call in calls:
        given = [part.strip() for part in call.split(",") if part.strip()]
        by_name = {part.rstrip("="): None for part in given if part.endswith("=")}
        try:
            signature.bind(*([] if static else [None]), *given[: len(given) - len(by_name)], **by_name)
        except TypeError as error:
            raise UsageError(
                f"{method_site(cls, name)} has the parameters {signature}, and is called as {name}({call}): {error}."
            ) from None
