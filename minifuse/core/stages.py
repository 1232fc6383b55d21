"""What the loop asks of the stages, the model, and what runs plans: their protocols.

A technique is a batching policy, a memory and an attention. A member with a value or a body has it by default.
`docs/stages.md` says of every member what it is for; `minifuse/stages.py` keeps the register.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from typing import Any, ClassVar, Protocol

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Layout, Move, Placement, Plan, Proposal, Room, Span, Work
from minifuse.core.report import Completion, KVUsage, Ran
from minifuse.core.request import Request, Sequence


def option(default: Any, help: str, **how: Any) -> Any:
    """Declare an option of a stage: a dataclass field, with how it is parsed (`minifuse/options.py`)."""
    return field(default=default, metadata={"help": help, **how})


class NoOptions:
    """The options of a stage that has none."""


class Stage(Protocol):
    """What every stage declares of itself."""

    kind: ClassVar[str]
    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})  # kinds of model: "transformer", "cells"


class Memory(Stage, Protocol):
    """Where every KV token lives. The only owner of slots, each of one token's KV or of one node's states."""

    kind: ClassVar[str] = "memory"
    # How KV lies: "extents" (consecutive slots), "rectangle", "slots" (adjacent buffers), "pages" (blocks).
    offers: ClassVar[frozenset[str]]
    reclaims: ClassVar[bool] = False  # whether KV of an evicted sequence may be reclaimed; it counts as kept
    evicts: ClassVar[bool] = False  # whether a policy may propose to evict sequences
    in_step: ClassVar[bool] = False  # whether an iteration must compute all running sequences: see `Batching.in_step`
    apart: ClassVar[bool] = False  # whether there is a place for prompts that are computed apart: see `Batching.apart`
    one_plan: ClassVar[bool] = False  # whether a plan may use all of the device, so that no other may run beside it
    remembers: ClassVar[bool] = False  # whether what has ended counts in later decisions: see `Batching.remembers`
    layers_in_turn: int = 1  # that have the device one after the other; 1: a slot holds a token's KV of all layers
    capacity: int  # slots of the device
    host_capacity: int = 0  # slots of the second tier

    @abstractmethod
    def check(self, *prompts: Request) -> None:
        """Raise `RequestRefused` if these prompts of one request could not be held at once even alone."""

    def receive(self, sequence: Sequence) -> None:
        """A request has arrived. Raise `RequestRefused` if what it unfolds into could not be held even alone."""

    @abstractmethod
    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """The spans of tokens whose KV must be computed before the next token can be sampled."""

    @abstractmethod
    def room(self) -> Room:
        """Open a trial of what is free now."""

    @abstractmethod
    def place(self, proposal: Proposal, now: float) -> Placement:
        """Commit what was settled in `proposal.room`, tried now if there is none; or refuse, and change nothing."""

    @abstractmethod
    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        """The plan has run: its KV is written, and the sequences in `sampled` get a token. Returns what was in use."""

    @abstractmethod
    def release(self, sequence: Sequence, now: float) -> None:
        """The sequence has ended: its KV is no longer needed. Safe for one that was never admitted."""

    def ahead(self, now: float) -> tuple[Move, ...]:
        """Transfers to begin now behind everything. Until they `landed`, sources are not written nor targets read."""
        return ()

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        """What `ahead` returned at once has been copied, at time `now`."""
        raise LawBroken("conservation", f"{moves} have landed, and this memory never asked for them")

    @abstractmethod
    def usage(self) -> KVUsage:
        """Count what is in use now."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise `LawBroken` unless free + owned = total and nothing overlaps."""


class Batching(Stage, Protocol):
    """Which work runs next: an order and an admission rule, nothing else."""

    kind: ClassVar[str] = "batching"
    workers: int = 1  # how many workers it has work for
    depth: int = 1  # plans that a worker may have in flight, which it runs in order
    granularity: str = "cell"  # what a node of a cell graph is: a "cell", or a single "operator"
    # What the policy claims, and the laws hold it to. A class that says nothing claims nothing.
    overtaken_at_most: int | None = None  # later arrivals admitted while a request waits, first come, first served
    work_conserving: bool = False  # no request waits while the batch has a place and memory room; of the object, too
    starts_together: bool = False  # the prompts of one request are admitted together
    in_step: bool = False  # an iteration with work on a running sequence has work on all of them
    apart: bool = False  # prompts are computed by plans of their own, before they join the sequences that run
    one_plan: bool = False  # there is one worker, with one plan at a time, whatever the options
    cuts: bool = False  # the tokens of an iteration are bounded whatever the options, so that prompts may be cut
    remembers: bool = False  # requests that have ended count in decisions about others, as in fair shares by user

    @property
    def token_budget(self) -> int | None:
        """Tokens of one iteration, at most: a longer span is cut, and goes on in the next. None: no bound."""
        return None

    def check(self, model: str, cell_types: Collection[str]) -> None:
        """Raise `UsageError` if an option names a type of cell that the model does not have."""

    @abstractmethod
    def receive(self, sequence: Sequence) -> None:
        """A request has arrived. Raise `RequestRefused` if it unfolds into what this policy cannot serve."""

    @abstractmethod
    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        """What `worker` should run next, asked at time `now`. Changes nothing but the policy's own queues."""

    def commit(self, plan: Plan, now: float) -> None:
        """A plan has completed, at time `now`; the tokens that it produced are not written down yet."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """The sequence has finished, or the run was interrupted."""


class Attention(Stage, Protocol):
    """How an iteration's tokens are laid out and attended. This half decides the layout, without tensors."""

    kind: ClassVar[str] = "attention"
    reads: ClassVar[frozenset[str]]  # any of these that the memory offers is enough
    tensors: ClassVar[str] = ""  # the backend on torch, as `module:class`; "": what runs the model needs none
    reference: ClassVar[str] = ""  # the backend of the reference numerics; "": it has none

    @abstractmethod
    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """The shape to be computed whole (None: ragged, no padding), the waves and the lanes of attention."""

    def check(self, device: str, dtype: str) -> None:
        """Raise `UsageError` if its tensor half cannot run on this device, cpu or cuda."""

    @abstractmethod
    def backend(self, device: str = "cpu", dtype: str = "float32", numerics: str = "fast") -> Any:
        """The half that works on tensors, a `minifuse.attention.batch.AttentionBackend`. Imports torch."""


class Reader(Protocol):
    """A model as far as requests concern it."""

    def check(self, request: Request, num_history: int = 0) -> None:
        """Raise `RequestRefused` if the model cannot serve it; its first `num_history` tokens are earlier requests'."""
        ...

    def fit(self, request: Request) -> Request:
        """The request, with `max_new_tokens` lowered to what the context has room for if it asks for that (`clip`)."""
        ...

    def begin(self, request: Request) -> Sequence:
        """The sequence of a request that has arrived. Raise `RequestRefused` if it unfolds into what cannot be."""
        ...


class Arrivals(Protocol):
    """The requests that were submitted and have not arrived; true while there are any (`minifuse/core/turns.py`)."""

    @property
    def next_s(self) -> float | None:
        """When the next request arrives, as far as is known."""
        ...

    def read(self, prompts: tuple[Request, ...]) -> tuple[Request, ...]:
        """The prompts of a request as Python's numbers, each behind the request that it follows."""
        ...

    def check(self, prompts: tuple[Request, ...]) -> list[Request]:
        """Raise `RequestRefused` unless they can be taken in as one request. Returns them behind known text."""
        ...

    def add(self, prompts: tuple[Request, ...], now: float) -> list[tuple[Request, int]]:
        """Take in a request. Returns the prompts whose arrival is known, each whole, with the length of its history."""
        ...

    def due(self, now: float) -> Iterator[tuple[Request, int]]:
        """The requests whose time has come, in order, each whole, with the length of its history."""
        ...

    def ended(self, sequence: Sequence) -> list[tuple[Request, str]]:
        """A sequence has ended: let the requests behind it come. Returns those that never will, and why."""
        ...


RunPlan = Callable[[Plan, dict[str, Sequence]], Ran]  # computes a plan


class Executor(Protocol):
    """Runs plans. Completions come back in the order in which plans end."""

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        """Run a plan behind those of its worker; one without work beside all, until its moves have landed."""
        ...

    def wait(self, until: float | None) -> list[Completion]:
        """Block until a plan completes, or until time `until` (then the list is empty)."""
        ...

    def wake(self) -> None:
        """End the present wait early, or the next. Called from any thread."""
        ...

    def close(self) -> None: ...


class Clock(Protocol):
    """Seconds since the run began: real, or virtual."""

    def now(self) -> float: ...
