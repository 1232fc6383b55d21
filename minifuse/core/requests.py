"""The life of requests: submitted, received, started, finished, refused or aborted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from minifuse.core.errors import RequestRefused, UsageError, WrongReturn
from minifuse.core.in_flight import InFlight
from minifuse.core.plan import Plan
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import FinishReason, Phase, Request, Sequence
from minifuse.core.stages import Arrivals, Batching, Clock, Executor, Log, Memory, Reader

Waiting = Callable[[], AbstractContextManager[None]]  # a context in which the loop waits


@dataclass(eq=False, repr=False)
class Requests:
    """The requests of an engine, and how they come and go. It alone writes `Sequence`.

    Requests may be submitted and aborted between two iterations, or from another thread. Times are in seconds since the
    run began.

    Attributes:
        now: the time of the last event.
        lock: the loop holds it while it turns, but not while it waits.
    """

    batching: Batching
    memory: Memory
    executor: Executor
    clock: Clock
    reader: Reader
    arrivals: Arrivals
    trace: Log

    def __post_init__(self) -> None:
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}  # in the order in which they ended
        self.refused: dict[str, str] = {}  # requests refused after they were received: why
        self.ended_between: deque[str] = deque()  # requests that ended otherwise than with an iteration
        self.in_flight = InFlight(self.batching.workers + 1, self.batching.depth)  # one carries moves behind everything
        self.now = 0.0
        self.lock = threading.RLock()
        self._thread: int | None = None  # that runs the loop, while it does
        self._stages_failed = False  # they are told nothing more
        self._served = False  # a list of requests: by `serve`
        self._closed = False
        self._has_run = False  # a real clock, which starts when it is first read, goes

    @property
    def unfinished(self) -> bool:
        return bool(self.arrivals or self.sequences or self.in_flight)

    # --- from outside

    def submit(self, *prompts: Request) -> None:
        """Take in a request: one `Request`, or one for each of its prompts, all of one group.

        It is received at its arrival time, or now if that has passed; without a loop that runs, in the next `run`.

        Raises:
            RequestRefused: it, or one of its prompts, could never be served. Nothing has changed.
            UsageError: this is no request, or the engine has been closed.
        """
        with self._called() as now:
            if self._closed:
                raise UsageError("This engine has been closed: build another, with the same model, for more requests.")
            prompts = self.arrivals.in_turn(prompts)
            try:
                self.arrivals.check(prompts)
                known = [
                    self.reader.fit(self.arrivals.whole(prompt)[0] if prompt.after is None else prompt)
                    for prompt in prompts
                ]
                for prompt in known:
                    self.reader.check(prompt)
                self._check_held(*known)
            except RequestRefused as refusal:
                self.arrivals.refuse(prompts)
                for prompt in prompts:
                    self.trace.refused(prompt.id, str(refusal))
                raise
            asked_s = prompts[0].arrival_s  # as of all of them
            for prompt in self.arrivals.add(prompts, now):
                whole, num_history = self.arrivals.whole(prompt)
                self.trace.request(self.reader.fit(whole), num_history, measured=prompt.arrival_s != asked_s)

    def _check_held(self, *prompts: Request) -> None:
        """Raise `RequestRefused` if memory could not hold these prompts of one request even alone."""
        found: Any = self.memory.check(*prompts)
        if found is not None:
            allowed = "it raises what it refuses with, and returns nothing"
            raise WrongReturn(self.memory, "check", found, allowed)

    def abort(self, name: str) -> bool:
        """End a request, or all prompts of a group, with its tokens so far. Returns whether it had not ended yet.

        A request that has not arrived takes those that follow it with it.

        Raises:
            UsageError: no such request was submitted.
        """
        with self._called() as now:
            prompts = self.arrivals.prompts_of(name)
            if not prompts:
                raise UsageError(f"There is no request {name!r} to abort: give the id of a request that was submitted.")
            self.now = now
            before = len(self.finished)
            for prompt in prompts:
                for request in self.arrivals.withdraw(prompt):
                    self._end_unseen(request, FinishReason.ABORTED)
                if prompt in self.sequences:
                    self._end_early(self.sequences[prompt], FinishReason.ABORTED)
            return len(self.finished) > before

    @contextmanager
    def _called(self) -> Iterator[float]:
        """Hold the lock during a call, then wake the loop. Yields the call's time.

        In the loop's own thread that is the last event's, and the loop is not woken: it would decide at a time that is
        no event's, which a replay does not have.
        """
        inside = self._thread == threading.get_ident()
        with self.lock:
            yield self.now if inside or not self._has_run else max(self.now, self.clock.now())
        if not inside and self._thread is not None:
            self.executor.wake()

    # --- in the loop

    @contextmanager
    def running(self) -> Iterator[None]:
        """This thread runs the loop. Raises `UsageError` if it runs already."""
        with self.lock:
            if self._thread is not None:
                raise UsageError("The engine runs already: submit the requests to it, or wait until its run has ended.")
            self.now = max(self.now, self.clock.now())  # a real clock starts when first read
            self._thread, self._has_run = threading.get_ident(), True
        try:
            yield
        finally:
            self._thread = None

    def receive(self) -> None:
        """Hand requests whose arrival time has come to the stages."""
        for arrived, num_history in self.arrivals.due(self.now):
            request = self.reader.fit(arrived)
            sequence = Sequence(request, num_history=num_history)
            try:
                if request.after is not None:  # its whole text has been known only since the last request ended
                    self.trace.request(request, num_history, measured=True)
                    self.reader.check(request, num_history)
                    self._check_held(request)
                sequence = self.reader.begin(request)
                sequence.num_history = num_history
                self.sequences[request.id] = sequence
                self.memory.receive(sequence)
                self.batching.receive(sequence)
            except RequestRefused as refusal:  # its text is too long, or what it unfolds into cannot be computed
                self._end_early(sequence, FinishReason.REFUSED, str(refusal))

    def reach(self, event_s: float) -> None:
        """Advance time to an event, receiving earlier arrivals each at its own time.

        A plan that runs in this thread hides arrivals until it has ended. The policy learns of them before it learns of
        that end, as it does in virtual time.
        """
        while (arrives_s := self.arrivals.next_s) is not None and arrives_s < event_s:
            self.now = max(self.now, arrives_s)
            self.receive()
        self.now = max(self.now, event_s)

    def start(self, plan: Plan) -> dict[str, Sequence]:
        """A plan is about to be submitted. Returns the sequences that it has work on."""
        for name in plan.evicted:
            self.sequences[name].phase = Phase.SUSPENDED
        for name in plan.admitted:
            self.sequences[name].phase = plan.phase
        working = {name: self.sequences[name] for name in plan.sequences}
        for sequence in working.values():
            sequence.phase = plan.phase
        self.in_flight.launch(plan, working, self.now)
        return working

    def take(self, completion: Completion, usage: KVUsage) -> StepReport:
        """Write down what a completed plan produced, and release what has finished.

        What it computed for sequences that have ended meanwhile, or beyond the end of an answer, is discarded.
        """
        plan, ran, ended_s = completion
        leaving = self.in_flight.leaving
        if plan.phase is Phase.PREPROCESSING:
            for name in {*plan.admitted, *plan.sequences} - leaving.keys():
                self.sequences[name].phase = Phase.READY
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in leaving) if leaving else 0
        num_pieces: dict[str, int] = {}
        for work in plan.work:
            num_pieces[work.sequence] = num_pieces.get(work.sequence, 0) + 1
        for name, count in num_pieces.items():
            if name in leaving:
                continue
            sequence, new = self.sequences[name], ran.tokens.get(name, ())
            if taken := sequence.take(new, count, ran.results.get(name, {})):
                tokens[name] = taken
            discarded += len(new) - len(taken)
            reason = FinishReason.NAN if name in ran.not_finite else sequence.why_finished()
            if reason is not None:
                finished[name] = reason
        started_s, freed = self.in_flight.land(plan, ended_s)
        for sequence in freed:
            self._release(sequence)
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        return StepReport(plan, started_s, ended_s, tokens, finished, usage, ran.measured, discarded)

    # --- ends

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence. Its memory is freed when no plan in flight uses it."""
        sequence.phase = Phase.FINISHED
        sequence.finish_reason, sequence.ended_s = reason, self.now
        if not self._stages_failed:
            self.batching.release(sequence)
        self.sequences.pop(sequence.id, None)
        self.finished[sequence.id] = sequence
        if not self.in_flight.leave(sequence):
            self._release(sequence)
        for request, why in self.arrivals.ended(sequence):
            self._end_unseen(request, FinishReason.REFUSED, why)

    def _end_early(self, sequence: Sequence, reason: FinishReason, why: str = "") -> None:
        """A sequence leaves that no completed plan has finished."""
        self.ended_between.append(sequence.id)
        if reason is FinishReason.REFUSED:
            self.refused[sequence.id] = why
            self.trace.refused(sequence.id, why, received=True)
        elif reason is FinishReason.ABORTED:
            self.trace.aborted(sequence.id, self.now)
        self._finish(sequence, reason)

    def _end_unseen(self, request: Request, reason: FinishReason, why: str = "") -> None:
        """A request ends before it has arrived: the stages never see it."""
        if request.after is not None:
            self.trace.request(request)
        self._end_early(Sequence(request), reason, why)

    def _release(self, sequence: Sequence) -> None:
        if not self._stages_failed:
            self.memory.release(sequence, self.now)
        sequence.graph = None  # its results stay

    def serve_once(self) -> None:
        """Raise `UsageError` if the engine runs, or has served a list of requests."""
        with self.lock:
            if self._thread is not None or self._served or self._closed:
                raise UsageError(
                    "This engine serves, or has served: submit more requests while it does, or build another engine, "
                    "with the same model."
                )
            self._served = True

    def over(self) -> bool:
        """Whether nothing is left to do; an engine that serves a list closes then."""
        with self.lock:
            if self.unfinished or (self._served and self.ended_between):
                return False
            self._closed |= self._served
            return True

    def close(self) -> list[Request]:
        """Stop the threads and end the trace. Returns the requests that have not arrived."""
        with self.lock:
            self._closed = True
            withdrawn = self.arrivals.withdraw_all()
        self.executor.close()
        self.trace.close()
        return withdrawn

    def interrupt(self, stages_failed: bool = False) -> list[str]:
        """Give up every unfinished request, with its tokens so far. Returns their ids. Close the engine then.

        Args:
            stages_failed: tell the stages nothing more; what they hold means nothing after one has failed.
        """
        self.executor.close()
        with self.lock:
            self._stages_failed = stages_failed
            for sequence in self.in_flight.abandon():
                self._release(sequence)
            names = list(self.sequences)
            for request in self.arrivals.withdraw_all():
                names.append(request.id)
                self._end_unseen(request, FinishReason.INTERRUPTED)
            for sequence in list(self.sequences.values()):
                self._end_early(sequence, FinishReason.INTERRUPTED)
            self.trace.end(names, self.clock.now(), self.finished.values())
        return names
