"""The only loop in the project. What makes a technique lies in its stages; here they take turns."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from minifuse.clock import Clock
from minifuse.errors import LawBroken, UsageError
from minifuse.lifecycle import Lifecycle
from minifuse.plan import Plan, Proposal
from minifuse.report import Completion, StepReport
from minifuse.request import FinishReason, Phase
from minifuse.stages import Attention, Batching, Executor, Memory, Reader
from minifuse.trace import Trace
from minifuse.watchdog import Watchdog
from minifuse.why import account_for, account_for_pause

__all__ = ["Engine"]


class Engine(Lifecycle):
    """Serves requests with one batching policy, the workers it asks for, one memory and one attention layout.

    With `why`, the reasons of a plan, or of a wait, tell of each sequence that waits why it was not admitted; then an
    iteration costs as much as the queue is long.
    """

    def __init__(
        self,
        batching: Batching,
        memory: Memory,
        attention: Attention,
        executor: Executor,
        clock: Clock,
        *,
        reader: Reader,
        trace: Trace | None = None,
        why: bool = False,
    ) -> None:
        super().__init__(batching, memory, executor, clock, reader, trace or Trace())
        self.attention = attention
        self._why = why  # whether proposals account for every sequence that waits
        self._waiting: list[Proposal] = []  # proposals without work, of workers that could take more
        self._watchdog = Watchdog(batching.name)
        self._committed = False  # whether a plan has been since memory was last asked for moves

    def run(self) -> Iterator[StepReport]:
        """Serve until nothing is left, reporting every iteration as it completes.

        What is submitted after that is served by the next call.
        """
        for reports in self.turns():
            yield from reports

    def turns(self) -> Iterator[list[StepReport]]:
        """The same, turn by turn: in some, none of the plans that run has completed.

        Raises:
            UsageError: the engine runs already.
        """
        with self._lock:
            if self._thread is not None:
                raise UsageError("The engine runs already: submit the requests to it, or wait until its run has ended.")
            self.now = max(self.now, self.clock.now())  # a real clock starts when first read
            self._thread, self._has_run = threading.get_ident(), True
        try:
            while not self._ends():
                yield self.turn() if self.unfinished else []
            self.trace.end((), self.now, self.answers)
        finally:
            self._thread = None

    def turn(self) -> list[StepReport]:
        """Go once around the loop: the iterations that completed, none if another event came first."""
        with self._lock:
            self.receive()
            self.dispatch()
            return self.collect()

    def dispatch(self) -> None:
        """For each worker that can take more: propose, place, lay out, submit. Then move what memory wants ahead."""
        self._waiting = []
        for worker in range(self.batching.workers):
            while self.in_flight.has_room(worker):
                proposal = self.batching.propose(worker, self.now, self.memory)
                if not proposal.work:
                    self._waiting.append(proposal)
                    break
                if self._why:
                    proposal = account_for(proposal, worker, self.sequences.values())
                self._submit(worker, proposal)
        if self._committed:  # not at an arrival, which a machine that computes may notice later than a replay does
            self._committed = False
            if moves := self.memory.ahead(self.now):  # a plan of moves alone, of a worker of its own
                plan = Plan(self.in_flight.num_launched, self.batching.workers, (), (), moves=moves)
                self.in_flight.launch(plan, (), self.now)
                self.executor.submit(plan, {}, self.now)

    def _submit(self, worker: int, proposal: Proposal) -> None:
        self.in_flight.check(worker, proposal, self.sequences)
        placement = self.memory.place(proposal, self.now)
        layout = self.attention.layout(proposal.work, placement)
        plan = Plan.of(self.in_flight.num_launched, worker, proposal, placement, layout)
        for sequence in proposal.evict:
            sequence.phase = Phase.SUSPENDED
        concerned = {name: self.sequences[name] for name in plan.sequences}
        for sequence in (*proposal.admit, *concerned.values()):
            sequence.phase = plan.phase
        # An admitted prompt without work, as of a group that is pre-processed together, has memory in the plan as well.
        self.in_flight.launch(plan, {*concerned, *plan.admitted} if plan.admitted else concerned, self.now)
        self.executor.submit(plan, concerned, self.now)

    def collect(self) -> list[StepReport]:
        """Wait for the next event: a plan completes, a request arrives, or a policy asked to be woken.

        Called with the lock, which is free while it waits: what it waits for is what was decided just before.
        """
        if not self.unfinished:
            return []
        until = self._next_event()
        reasons = tuple(dict.fromkeys(reason for proposal in self._waiting for reason in proposal.reasons))
        if self._why and not self.in_flight:
            reasons = account_for_pause(reasons, self.sequences.values())
        if not self.in_flight and (until is None or until <= self.now):
            why = "; ".join(map(str, reasons)) or "the batching policy proposed no work and gave no reason."
            raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        self._lock.release()
        try:
            completions = self.executor.wait(until)
        finally:
            self._lock.acquire()
        if completions:
            self._watchdog.happened()
            self._receive_before(completions[-1].ended_s)
            self.now = max(self.now, completions[-1].ended_s)
            return [self.commit(completion) for completion in completions]
        # The event's own time, not the moment the host woke up: decisions must not depend on that.
        now = self.clock.now() if until is None else min(until, self.clock.now())
        if until is None or now < until or until == self.arrivals.next_s:
            self._watchdog.happened()
        else:
            self._watchdog.woke(running=bool(self.in_flight))
        if self.sequences and not self.in_flight:
            self.trace.wait(reasons, self.now, now)
        self.now = max(self.now, now)
        return []

    def _receive_before(self, ended_s: float) -> None:
        """Receive what arrived while plans ran, each at its own time.

        A plan that runs in this thread hides arrivals until it has ended. The policy learns of them before it learns of
        that end, as it does in virtual time.
        """
        while (arrives_s := self.arrivals.next_s) is not None and arrives_s < ended_s:
            self.now = max(self.now, arrives_s)
            self.receive()

    def _next_event(self) -> float | None:
        """The time of the next arrival, or the earliest at which a policy asked to be woken, whichever comes first."""
        times = [self.arrivals.next_s, *(proposal.wake_at for proposal in self._waiting)]
        return min((time for time in times if time is not None), default=None)

    def commit(self, completion: Completion) -> StepReport:
        """Write down what a completed plan produced, and release what has finished.

        What it computed for sequences that have ended meanwhile, or beyond the end of an answer, is discarded.
        """
        plan, ran, ended_s = completion
        leaving = self.in_flight.leaving
        produced = {name: new for name, new in ran.tokens.items() if name not in leaving} if leaving else ran.tokens
        self._committed = True
        if plan.work:
            usage = self.memory.commit(plan, produced, self.now)
            self.batching.commit(plan, self.now)
        else:
            usage = self.memory.landed(plan.moves, self.now)
        if plan.phase is Phase.PREPROCESSING:
            for name in {*plan.admitted, *plan.sequences} - leaving.keys():
                self.sequences[name].phase = Phase.READY
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in leaving) if leaving else 0
        for name, num_pieces in Counter([work.sequence for work in plan.work]).items():
            if name in leaving:
                continue
            sequence, new = self.sequences[name], produced.get(name, ())
            if taken := sequence.take(new, num_pieces, ran.results.get(name)):
                tokens[name] = taken
            discarded += len(new) - len(taken)
            if reason := sequence.why_finished():
                finished[name] = reason
        finished |= {name: FinishReason.NAN for name in ran.not_finite if name not in leaving}
        started_s, freed = self.in_flight.land(plan, ended_s)
        for sequence in freed:
            self._release(sequence)
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        measured = (ran.moving_s, ran.messages, ran.gathers, ran.transfers)
        report = StepReport(plan, started_s, ended_s, tokens, finished, usage, *measured, discarded=discarded)
        self.trace.step(report)
        return report
