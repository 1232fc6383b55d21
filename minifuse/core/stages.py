"""What the loop asks of the stages, of the model, and of the executor.

A technique is a batching policy, a memory and an attention. `minifuse/stages.py` lists all that a stage declares, and
registers stages; `docs/stages.md` says who calls each method, and when. `now` is in seconds since the run began.
A stage must define the abstract methods; the other methods do nothing unless the stage overrides them.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from typing import Any, ClassVar, Protocol

from minifuse.core.plan import Layout, Placement, Plan, Proposal, Room, Span, Work
from minifuse.core.report import Completion, KVUsage, Ran
from minifuse.core.request import Request, Sequence

RunPlan = Callable[[Plan, dict[str, Sequence]], Ran]  # computes a plan and makes its moves


def option(default: Any, help: str, **how: Any) -> Any:
    """Declare a stage's option: a dataclass field that says how to parse it (`minifuse/options.py`)."""
    return field(default=default, metadata={"help": help, **how})


class Memory(Protocol):
    """Decides where every token's KV lives. Owns all slots; a slot holds one token."""

    capacity: int  # slots
    host_capacity: int = 0  # slots of the second tier, for what is swapped out
    evicts: bool = False  # whether a policy may propose to evict sequences

    @abstractmethod
    def check(self, *prompts: Request) -> None: ...  # RequestRefused: too large even for empty memory
    def receive(self, sequence: Sequence) -> None: ...  # a request has arrived
    @abstractmethod
    def missing(self, sequence: Sequence) -> tuple[Span, ...]: ...  # tokens to compute before the next is sampled
    @abstractmethod
    def room(self) -> Room: ...  # lets a policy try decisions
    @abstractmethod
    def place(self, proposal: Proposal, now: float) -> Placement: ...  # commits what was tried on proposal.room
    @abstractmethod
    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage: ...  # the KV of a plan is written
    @abstractmethod
    def release(self, sequence: Sequence, now: float) -> None: ...  # it has ended, whether or not it was admitted
    @abstractmethod
    def usage(self) -> KVUsage: ...


class Batching(Protocol):
    """Decides which work runs next: who joins, in which order, who is evicted."""

    name: ClassVar[str]
    workers: int = 1  # how many workers it has work for
    depth: int = 1  # plans that a worker may have in flight, which it runs in order

    @abstractmethod
    def receive(self, sequence: Sequence) -> None: ...  # a request has arrived
    @abstractmethod
    def propose(self, worker: int, now: float, memory: Memory) -> Proposal: ...  # changes only the policy's queues
    def commit(self, plan: Plan, now: float) -> None: ...  # a plan has completed; its tokens are not recorded yet
    @abstractmethod
    def release(self, sequence: Sequence) -> None: ...  # it has finished, or was aborted


class Attention(Protocol):
    """Lays out an iteration's tokens. An `AttentionBackend` (`minifuse/attention/batch.py`) attends them."""

    @abstractmethod
    def layout(self, work: tuple[Work, ...], placement: Placement) -> Layout: ...


class Reader(Protocol):
    """The part of a model that checks requests and makes sequences of them."""

    def fit(self, request: Request) -> Request: ...  # with max_new_tokens cut to the context, if it asks for that
    def check(self, request: Request, num_history: int = 0) -> None: ...  # RequestRefused: it cannot be served
    def begin(self, request: Request) -> Sequence: ...  # for models of cells, with the graph that it unfolds into


class Arrivals(Protocol):
    """The submitted requests that have not arrived; true if there are any (`minifuse/core/turns.py`)."""

    @property
    def next_s(self) -> float | None: ...  # when the next request arrives, as far as is known
    def add(self, prompts: tuple[Request, ...], now: float) -> Any: ...  # none arrives before `now`
    def due(self, now: float) -> Iterator[tuple[Request, int]]: ...  # arrived by now, each with its `num_history`


class Executor(Protocol):
    """Runs plans. Completions come back in the order in which plans end."""

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None: ...
    def wait(self, until: float | None) -> list[Completion]: ...  # blocks until a plan completes, or until a time


class Clock(Protocol):
    def now(self) -> float: ...  # real, or virtual
