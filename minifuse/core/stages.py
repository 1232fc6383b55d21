"""What the loop asks of the stages, of the model, and of what runs plans: their protocols.

A technique is a batching policy, a memory and an attention. `minifuse/stages.py` has all that a stage declares, with
defaults, and the register; `docs/stages.md` says of every method who calls it and when.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from typing import Any, ClassVar, Protocol

from minifuse.core.plan import Layout, Placement, Plan, Proposal, Room, Span, Work
from minifuse.core.report import Completion, KVUsage, Ran
from minifuse.core.request import Request, Sequence


def option(default: Any, help: str, **how: Any) -> Any:
    """Declare an option of a stage: a dataclass field, with how it is parsed (`minifuse/options.py`)."""
    return field(default=default, metadata={"help": help, **how})


class Memory(Protocol):
    """Where every KV token lives. The only owner of slots, each of one token's KV."""

    capacity: int  # slots
    host_capacity: int = 0  # slots of the second tier, for what is swapped out
    evicts: ClassVar[bool] = False  # whether a policy may propose to evict sequences

    @abstractmethod
    def check(self, *prompts: Request) -> None:
        """Raise `RequestRefused` if these prompts of one request could not be held at once even alone."""

    def receive(self, sequence: Sequence) -> None:
        """A request has arrived. Raise `RequestRefused` if it could not be held even alone."""

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

    @abstractmethod
    def usage(self) -> KVUsage:
        """Count what is in use now."""


class Batching(Protocol):
    """Which work runs next: an order and an admission rule, nothing else."""

    name: ClassVar[str]
    workers: int = 1  # how many workers it has work for
    depth: int = 1  # plans that a worker may have in flight, which it runs in order

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


class Attention(Protocol):
    """How an iteration's tokens are laid out and attended. Its tensor half makes a `Batch` of a plan."""

    @abstractmethod
    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout:
        """The shape to be computed whole (None: ragged, no padding), the waves and the lanes of attention."""


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


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the run began: real, or virtual."""
        ...
