"""The serving engine: it has a trace and checks, and accepts calls of other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minifuse.contracts.lawful import Lawful
from minifuse.core.engine import Engine
from minifuse.core.errors import UsageError
from minifuse.core.observers import Observers, RunObserver, Watchdog
from minifuse.core.plan import RAGGED, Placement, Proposal
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import FinishReason, Phase, Request
from minifuse.core.requests import Observer
from minifuse.core.stages import Executor
from minifuse.core.submitted import check_are_requests
from minifuse.core.turns import Turns
from minifuse.serve.requests import ServedRequests
from minifuse.stages import Attention, Batching, Memory
from minifuse.trace.log import Trace

WAITING = (Phase.RECEIVED, Phase.SUSPENDED)
Waiting = Callable[[], AbstractContextManager[None]]  # a context in which the loop waits


class Load(NamedTuple):
    """The load of an engine at one moment."""

    running: int  # requests that have memory
    waiting: int  # requests that have arrived and have no memory, evicted ones included
    usage: KVUsage


class ServingExecutor(Executor, Protocol):
    """An executor that other threads can wake."""

    def wake(self) -> None:
        """End the current wait early, or else the next one. Any thread may call this."""
        ...

    def close(self) -> None: ...


@dataclass(eq=False, repr=False)
class ServingEngine(Engine):
    """An engine that runs while other threads submit and abort requests.

    A lock is held during a turn of the loop, except while the loop waits. `observers` receive each event in the given
    order, before the checks and the trace do.
    """

    batching: Batching
    memory: Memory
    attention: Attention
    executor: ServingExecutor
    arrivals: Turns = field(default_factory=Turns, kw_only=True)
    trace: Trace = field(default_factory=Trace, kw_only=True)
    observers: tuple[Observer, ...] = field(default=(), kw_only=True)
    observer: RunObserver = field(init=False)
    requests: ServedRequests = field(init=False)

    def __post_init__(self) -> None:
        self.observer = Observers(*self.observers, Lawful(), Watchdog(self.batching.name), self.trace)
        super().__post_init__()
        self.sequences = self.requests.sequences
        self.finished = self.requests.finished
        self.refused = self.requests.refused
        self._lock = threading.RLock()
        self._waiting: Waiting = nullcontext
        self._committed = False  # whether a plan was committed since memory was last asked for moves
        self._thread: int | None = None  # the thread that runs the loop, if any
        self._served = False  # whether `serve` has taken a list of requests
        self._closed = False
        self._has_run = False  # a real clock starts at its first reading

    def make_requests(self) -> ServedRequests:
        return ServedRequests(self.batching, self.memory, self.reader, self.arrivals, self.observer)

    # --- the loop

    def run(self) -> Iterator[StepReport]:
        for reports in self.turns():
            yield from reports

    def turns(self, waiting: Waiting = nullcontext) -> Iterator[list[StepReport]]:
        """Like `run`, but yields once per turn, and waits inside `waiting()`.

        Raises:
            UsageError: the engine runs already.
        """
        with self._lock:
            if self._thread is not None:
                raise UsageError("The engine runs already: submit the requests to it, or wait until its run has ended.")
            self.requests.now = max(self.now, self.clock.now())  # a real clock starts when first read
            self._thread, self._waiting, self._has_run = threading.get_ident(), waiting, True
        try:
            while not self._over():
                yield self.turn()
            self.trace.ended((), self.now, self.finished.values())
        finally:
            self._thread, self._waiting = None, nullcontext

    def turn(self) -> list[StepReport]:
        with self._lock:
            return super().turn() if self.requests.unfinished else []

    def wait(self, until: float | None) -> list[Completion]:
        """Release the lock, which the caller holds, while waiting."""
        self._lock.release()
        try:
            with self._waiting():
                return self.executor.wait(until)
        finally:
            self._lock.acquire()

    def _over(self) -> bool:
        """Return whether nothing is left; if so, close an engine that serves a list."""
        with self._lock:
            if self.requests.unfinished or (self._served and self.requests.ended):
                return False
            self._closed |= self._served
            return True

    # --- moves ahead of time

    def dispatch(self) -> None:
        """Dispatch as `Engine` does, then submit the moves that memory wants ahead of time."""
        super().dispatch()
        if self._committed:  # not after an arrival: a busy host notices arrivals late, a replay does not
            self._committed = False
            moves = self.memory.ahead(self.now)
            if moves != ():  # a plan without work, on a worker of its own
                self.launch(self.batching.workers, Proposal(), Placement((), moves=moves), RAGGED)

    def written(self, completion: Completion) -> KVUsage:
        self._committed = True
        if completion.plan.work:
            return super().written(completion)
        return self.memory.landed(completion.plan.moves, self.now)

    # --- from outside

    def submit(self, *prompts: Request) -> None:
        """Submit a request: one `Request`, or a group with a `Request` per prompt.

        The request is received at its arrival time, or now if that time has passed. If the engine is not running, or
        has just served its last request, the new request waits for the next `run`. The new request follows the last
        request of its conversation, unless its `after` names another.

        Raises:
            RequestRefused: the request, or one of its prompts, could never be served. Nothing has changed.
            UsageError: a prompt is not a `Request`, or the engine has been closed.
        """
        check_are_requests(prompts)
        if not prompts:
            raise UsageError("No request was submitted: give one, or all prompts of one.")
        with self._lock:
            if self._closed:
                raise UsageError("This engine has been closed: build another, with the same model, for more requests.")
            self.requests.submit(prompts, self._called_s())
        self._wake()

    def abort(self, name: str) -> bool:
        """End a request or group, keeping its tokens. Returns whether there was anything to end.

        If the request has not arrived, the requests that follow it are aborted, too.

        Raises:
            UsageError: no such request was submitted.
        """
        with self._lock:
            now = self._called_s()
            prompts = self.arrivals.prompts_of(name)
            if not prompts:
                raise UsageError(f"There is no request {name!r} to abort: give the id of a request that was submitted.")
            self.requests.now = now
            before = len(self.finished)
            for prompt in prompts:
                for request in self.arrivals.withdraw(prompt):
                    self.requests.end_unseen(request, FinishReason.ABORTED)
                if prompt in self.sequences:
                    self.requests.end_early(self.sequences[prompt], FinishReason.ABORTED)
            has_ended = len(self.finished) > before
        self._wake()
        return has_ended

    def forget(self, name: str) -> None:
        """Forget a request that has ended, so that a long-running server does not grow.

        Its id may be used again. Its conversation continues the text that `arrivals.stored` returns.

        Raises:
            UsageError: the request has not ended.
        """
        with self._lock:
            if name in self.arrivals.prompts_of(name) and name not in self.finished:
                raise UsageError(f"Request {name!r} has not ended: abort it, or forget it when it has.")
            self.requests.forget(name)

    def load(self) -> Load:
        """Return how many requests run and wait now, and the memory in use."""
        with self._lock:
            waiting = sum(one.phase in WAITING for one in self.sequences.values())
            return Load(len(self.sequences) - waiting, waiting, self.memory.usage())

    def _called_s(self) -> float:
        """Return the time of a call: now, or the last event's in the loop's thread."""
        inside = self._thread == threading.get_ident()
        return self.now if inside or not self._has_run else max(self.now, self.clock.now())

    def _wake(self) -> None:
        """Wake the loop after a call from another thread."""
        if self._thread not in (None, threading.get_ident()):
            self.executor.wake()

    def serve_once(self) -> None:
        """Begin to serve a list. Raise `UsageError` if the engine runs or has served."""
        with self._lock:
            if self._thread is not None or self._served or self._closed:
                raise UsageError(
                    "This engine serves, or has served: submit more requests while it does, or build another engine, "
                    "with the same model."
                )
            self._served = True
            self.requests.ended.clear()  # answers that ended before `serve` are not awaited

    def close(self) -> list[Request]:
        """Stop the threads and end the trace. Returns the requests that had not arrived."""
        with self._lock:
            self._closed = True
            withdrawn = self.arrivals.withdraw_all()
        self.executor.close()
        self.trace.close()
        return withdrawn

    def interrupt(self, stages_failed: bool = False) -> list[str]:
        """End every unfinished request with the tokens that it has. Returns the ids.

        Close the engine afterwards: its stages still wait for plans that will never complete.

        Args:
            stages_failed: whether a stage has failed; the stages are then not called again.
        """
        self.executor.close()
        with self._lock:
            names = self.requests.give_up(stages_failed)
            self.trace.ended(names, self.clock.now(), self.finished.values())
        return names
