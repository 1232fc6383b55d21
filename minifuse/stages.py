"""What a stage is: the protocols, and the register of those that exist.

A technique is a batching policy, a memory and an attention layout; the engine knows them only by these protocols.
Register a class and it can be named on the command line, is listed, explained, and put through the laws:

    @register
    class Mine(QueuePolicy):
        '''One line that `minifuse explain` shows.'''
        kind, name = "batching", "mine"

Nothing here imports torch: an attention stage's tensor half is imported by its `backend()`.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Literal, TypeVar

from minifuse.core.errors import UsageError
from minifuse.core.stages import Attention, Batching, Memory
from minifuse.declarations import check_declared, claims_no_order, defaults
from minifuse.fault import class_site, is_own
from minifuse.parsing import unknown

__all__ = [
    "COMPUTED_WHOLE",
    "KINDS",
    "Kind",
    "kinds_of",
    "register",
    "stage",
    "stages",
]

Kind = Literal["batching", "memory", "attention"]
KINDS: tuple[Kind, ...] = ("batching", "memory", "attention")
COMPUTED_WHOLE = frozenset({"rectangle", "slots"})  # an attention that reads these computes idle tokens as well


StageClass = TypeVar("StageClass", bound=type[Any])

PROTOCOLS: dict[str, type[Any]] = {"batching": Batching, "memory": Memory, "attention": Attention}
_STAGES: dict[str, dict[str, type[Any]]] = {kind: {} for kind in KINDS}
_MODULES = ("minifuse.batching", "minifuse.memory", "minifuse.attention")


def register(cls: StageClass) -> StageClass:
    """Make a stage known by its `kind` and `name`, once. What it does not say has a default: it serves
    transformers, and claims nothing.

    Raises:
        UsageError: it lacks something that a stage of its kind must have (`minifuse.declarations`), or another class
            has this name.
    """
    if not is_own(cls):
        _register_shipped()  # their names are taken
    check_declared(cls, PROTOCOLS)
    if claims_no_order(cls):
        cls.overtaken_at_most = None
    kind, name = cls.kind, cls.name
    for member, value in defaults(PROTOCOLS[kind]).items():
        if not hasattr(cls, member):
            setattr(cls, member, value)
    known = _STAGES[kind].setdefault(name, cls)
    if known is not cls:
        first, second = (f"{one.__qualname__} ({class_site(one)})" for one in (known, cls))
        if first == second:
            raise UsageError(f"The file of {first} was loaded twice: import it, or give it as a plugin, not both.")
        raise UsageError(f"The {kind} stage {name!r} is already {first}: choose another name for {second}.")
    return cls


@cache
def _register_shipped() -> None:
    for module in map(importlib.import_module, _MODULES):
        for name in module.__all__:
            register(getattr(module, name))


def stages(kind: Kind) -> dict[str, type[Any]]:
    """Every registered stage of one kind, by name."""
    _register_shipped()
    return dict(_STAGES[kind])


def stage(kind: Kind, name: str) -> type[Any]:
    """The stage called `name`.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    known = stages(kind)
    if name not in known:
        raise unknown(f"{kind} stage", name, known)
    return known[name]


def kinds_of(name: str) -> list[Kind]:
    """The kinds of the stages with this name: "paged" is a memory and an attention, "memory.paged" one of them."""
    wanted, _, bare = name.rpartition(".")
    return [kind for kind in KINDS if bare in stages(kind) and wanted in ("", kind)]
