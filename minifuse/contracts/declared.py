"""Checks, when a stage is registered, what its class declares."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from minifuse.contracts.fault import class_site, is_own
from minifuse.core.errors import UsageError
from minifuse.io.parsing import did_you_mean

SERVED = {"transformer", "cells"}
WAYS = {"memory": ("offers",), "attention": ("reads",)}  # members that say how KV may lie; they have no default


def nearest(name: str, cls: type[Any]) -> str | None:
    """Find the member of a class that is named most like `name`: perhaps a misspelling.

    >>> # nearest("propose", a class with `def propse`) is "propse"
    """
    return next(iter(difflib.get_close_matches(name, [own for own in vars(cls) if own != name], 1, 0.7)), None)


def defaults(protocol: type[Any]) -> dict[str, Any]:
    """Return the members for which a protocol has a default: a value or a body."""
    names = {name for name in dir(protocol) if not name.startswith("_")} - protocol.__abstractmethods__
    return {name: getattr(protocol, name) for name in names}


def check_declared(cls: type[Any], protocols: Mapping[str, type[Any]]) -> None:
    """Raise `UsageError` if the kind, name, or members of a stage are wrong."""
    kind, name = getattr(cls, "kind", None), getattr(cls, "name", None)
    if not isinstance(kind, str) or kind not in protocols:
        meant = did_you_mean(kind, protocols) if isinstance(kind, str) else ""
        raise UsageError(f"{_named(cls)} has the kind {kind!r}{meant}: give {', '.join(protocols)}.")
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise UsageError(f"{_named(cls)} has the name {name!r}: give a word, which the command line takes.")
    required = (*WAYS.get(kind, ()), *sorted(protocols[kind].__abstractmethods__))
    if missing := [member for member in required if not hasattr(cls, member)]:
        near = nearest(missing[0], cls)
        hint = f"is it misspelt as {near!r}? See" if near else "see"
        raise UsageError(
            f"The {kind} stage {name!r} has no {missing[0]!r} ({class_site(cls)}): {hint} docs/stages.md, or "
            "minifuse.stages, for what it must have."
        )
    for member in ("offers", "reads", "serves"):
        words: Any = getattr(cls, member, frozenset())
        if not isinstance(words, set | frozenset) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"The {kind} stage {name!r} has {member} = {words!r}: give a set, frozenset({{...}}).")
    if not getattr(cls, "serves", SERVED) <= SERVED:
        raise UsageError(
            f"The {kind} stage {name!r} has serves = {set(cls.serves)}: give {' or '.join(sorted(SERVED))}."
        )
    if kind == "batching" and _is_orderless(cls):
        what = "let them inherit QueueOptions (minifuse.batching.queue), or give the policy a rank of its own."
        if near := nearest("rank", cls):
            what = f"its {near!r} is never called: did you mean 'rank'? Rename it."
        whose = f"The batching policy {cls.__name__} ({class_site(cls)})"
        raise UsageError(f"{whose} has a queue and Options without an order: {what}")


def _is_orderless(cls: type[Any]) -> bool:
    """Return whether a policy inherits a rank by its options, but its options have none."""
    owner = _owner(cls, "rank")
    return owner is not None and is_own(owner) and hasattr(owner.Options, "rank") and not hasattr(cls.Options, "rank")


def claims_no_order(cls: type[Any]) -> bool:
    """Return whether a policy has its own rank, but inherits `overtaken_at_most`."""
    rank, claim = _owner(cls, "rank"), _owner(cls, "overtaken_at_most")
    return rank is not None and claim is not None and rank is not claim and issubclass(rank, claim)


def _owner(cls: type[Any], member: str) -> type[Any] | None:
    """Return the class or base class that defines a member, or None."""
    return next((base for base in cls.__mro__ if member in vars(base)), None)


def _named(cls: type[Any]) -> str:
    """Name a class with its file and line.

    Finding the line takes long, so only refusals use this.
    """
    return f"The class {cls.__qualname__} ({class_site(cls)})"
