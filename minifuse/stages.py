"""Defines what a stage declares in addition to what the loop asks; registers stages.

Register a class and it can be named on the command line, is listed, explained, and put through the laws:

    @register
    class Mine(QueuePolicy):
        '''One line that `minifuse explain` shows.'''
        kind, name = "batching", "mine"

Nothing here imports torch: an attention stage's tensor half is imported by its `backend()`.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Collection
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from minifuse.contracts.declared import check_declared, claims_no_order, defaults
from minifuse.contracts.fault import class_site, is_own
from minifuse.core import stages as core
from minifuse.core.errors import LawBroken, UsageError
from minifuse.core.plan import Move
from minifuse.core.report import KVUsage
from minifuse.io.parsing import unknown
from minifuse.options import NoOptions, wrong_options

Kind = Literal["batching", "memory", "attention"]
KINDS: tuple[Kind, ...] = ("batching", "memory", "attention")
COMPUTED_WHOLE = frozenset({"rectangle", "slots"})  # an attention that reads these computes idle tokens as well


class Stage(Protocol):
    """Lists what every stage declares about itself."""

    kind: ClassVar[str]
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})  # kinds of model: "transformer", "cells"


class Batching(core.Batching, Stage, Protocol):
    """A batching policy with its claims, which the laws check. By default it claims nothing."""

    kind: ClassVar[str] = "batching"
    granularity: str = "cell"  # what a node of a cell graph is: a "cell", or a single "operator"
    batch_sizes: tuple[int, ...] = ()  # of cells: each cell is computed once at each size before requests arrive
    overtaken_at_most: int | None = None  # how many later arrivals may be admitted before a waiting request
    work_conserving: bool = False  # no request waits while batch and memory have room; an object may set it, too
    starts_together: bool = False  # the prompts of one request are admitted together
    in_step: bool = False  # an iteration with work on a running sequence has work on all of them
    apart: bool = False  # prompts are computed by plans of their own, before they join the sequences that run
    one_plan: bool = False  # there is one worker, with one plan at a time, whatever the options
    budget_of_prompts: bool = False  # the token_budget bounds the tokens of prompts; single tokens do not count
    cuts: bool = False  # the tokens of an iteration are bounded whatever the options, so that prompts may be cut
    remembers: bool = False  # ended requests count in decisions about others, as in fair shares by user

    @property
    def token_budget(self) -> int | None:
        """Return the most tokens of one iteration, or None; longer spans are split over iterations."""
        return None

    def check(self, model: str, cell_types: Collection[str]) -> None:
        """Raise `UsageError` if an option names a type of cell that the model lacks."""


class Memory(core.Memory, Stage, Protocol):
    """A memory stage, with what it declares about itself.

    A slot holds one token's KV, or one node's states. `capacity` is the `--kv-memory` budget divided by the bytes of a
    slot. `host_capacity` counts the slots of the second tier, which holds what is swapped out.
    """

    kind: ClassVar[str] = "memory"
    # How KV lies: "extents" (a sequence in consecutive slots), "rectangle" (a rectangle), "slots" (adjacent buffers),
    # "pages" (blocks).
    offers: ClassVar[frozenset[str]]
    reclaims: ClassVar[bool] = False  # whether KV of an evicted sequence may be reclaimed; it counts as kept
    in_step: ClassVar[bool] = False  # whether an iteration must compute all running sequences: see `Batching.in_step`
    apart: ClassVar[bool] = False  # whether there is a place for prompts that are computed apart: see `Batching.apart`
    one_plan: ClassVar[bool] = False  # whether a plan may use all of the device, so that no other may run meanwhile
    scales: bool = False  # whether running sequences are evicted to stay below a threshold; an object may set it
    remembers: ClassVar[bool] = False  # whether ended requests count in later decisions: see `Batching.remembers`
    # Further slots of the device, each for a token's KV in one layer at a time (tier "shared"). They come out of the
    # budget, hold nothing between two plans, and all layers of a plan use them one after the other.
    shared_capacity: int = 0
    host_dtype: str = "auto"  # of KV on the host; "int8": it is rounded to 8 bits on its way there

    def ahead(self, now: float) -> tuple[Move, ...]:
        """Return transfers to begin at time `now`, behind all others (`moment="behind"`); often none.

        The transfers begin in this order. The loop calls `ahead` only after events at which a plan completed, once the
        next plans have been submitted. Until the transfers have `landed`, their sources must not be allocated, and
        their targets must not be read.
        """
        return ()

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        """Record that the moves of one call of `ahead` have been copied, at time `now`."""
        raise LawBroken("conservation", f"{moves} have landed, and this memory never asked for them")

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise `LawBroken` unless free + owned = total and nothing overlaps."""


class Attention(core.Attention, Stage, Protocol):
    """An attention stage: its layout, and the backend that computes it."""

    kind: ClassVar[str] = "attention"
    reads: ClassVar[frozenset[str]]  # any of these that the memory offers is enough
    tensors: ClassVar[str] = ""  # the backend on torch, as `module:class`; "": the model runs without one
    reference: ClassVar[str] = ""  # the backend of the reference numerics; "": there is none

    def check(self, device: str, dtype: str) -> None:
        """Raise `UsageError` if the backend cannot run on this device, cpu or cuda."""

    @abstractmethod
    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """Return the half that works on tensors, a `minifuse.attention.batch.AttentionBackend`. Imports torch."""


StageClass = TypeVar("StageClass", bound=type[Any])

PROTOCOLS: dict[str, type[Any]] = {"batching": Batching, "memory": Memory, "attention": Attention}
_STAGES: dict[str, dict[str, type[Any]]] = {kind: {} for kind in KINDS}


def register(cls: StageClass) -> StageClass:
    """Make a stage known by its `kind` and `name`, once.

    By default a stage serves transformers, and claims nothing. A class that a notebook defines again replaces itself.

    Raises:
        UsageError: the class lacks something that a stage of its kind must have (`minifuse.contracts.declared`), or
            another class has this name.
    """
    if not is_own(cls):
        _register_shipped()  # their names are taken
    check_declared(cls, PROTOCOLS)
    if (wrong := wrong_options(getattr(cls, "Options", NoOptions))) is not None:
        raise UsageError(f"The Options of the {cls.kind} stage {cls.name!r} ({class_site(cls)}) {wrong}")
    if claims_no_order(cls):
        cls.overtaken_at_most = None
    kind, name = cls.kind, cls.name
    for member, value in defaults(PROTOCOLS[kind]).items():
        if not hasattr(cls, member):
            setattr(cls, member, value)
    known = _STAGES[kind].setdefault(name, cls)
    if known.__module__ == cls.__module__ == "__main__" and known.__qualname__ == cls.__qualname__:
        _STAGES[kind][name] = cls  # its cell has been run again
    elif known is not cls:
        first, second = (f"{one.__qualname__} ({class_site(one)})" for one in (known, cls))
        if first == second:
            raise UsageError(f"The file of {first} was loaded twice: import it, or give it as a plugin, not both.")
        raise UsageError(f"The {kind} stage {name!r} is already {first}: choose another name for {second}.")
    return cls


@cache
def _register_shipped() -> None:
    for kind in KINDS:
        importlib.import_module(f"minifuse.{kind}")  # each registers its own on import


def stages(kind: Kind) -> dict[str, type[Any]]:
    """Return every registered stage of one kind, by name."""
    _register_shipped()
    return dict(_STAGES[kind])


def stage(kind: Kind, name: str) -> type[Any]:
    """Return the stage called `name`.

    Raises:
        UsageError: there is no such stage; the message names the nearest.
    """
    known = stages(kind)
    if name not in known:
        raise unknown(f"{kind} stage", name, known)
    return known[name]


def kinds_of(name: str) -> list[Kind]:
    """Return the kinds of the stages with this name: two for "paged", one for "memory.paged"."""
    wanted, _, bare = name.rpartition(".")
    return [kind for kind in KINDS if bare in stages(kind) and wanted in ("", kind)]
