"""The only loop in the project, in which the stages take turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass

from minifuse.core.errors import LawBroken
from minifuse.core.observer import Observer
from minifuse.core.plan import Placement, Plan, Proposal
from minifuse.core.report import Completion, StepReport
from minifuse.core.requests import Requests, Waiting
from minifuse.core.stages import Arrivals, Attention, Batching, Clock, Executor, Log, Memory, Reader


@dataclass(eq=False, repr=False)
class Engine:
    """Serves requests with one batching policy, its workers, one memory and one attention layout.

    `requests` says how they come and go. `observers` follow the loop, in this order.
    """

    batching: Batching
    memory: Memory
    attention: Attention
    executor: Executor
    clock: Clock
    _: KW_ONLY
    reader: Reader
    arrivals: Arrivals
    trace: Log
    observers: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        self.requests = Requests(
            self.batching, self.memory, self.executor, self.clock, self.reader, self.arrivals, self.trace
        )
        self.in_flight = self.requests.in_flight
        self.sequences = self.requests.sequences
        self.finished = self.requests.finished
        self.refused = self.requests.refused
        self.submit = self.requests.submit
        self.abort = self.requests.abort
        self.interrupt = self.requests.interrupt
        self.close = self.requests.close
        self._idle: list[Proposal] = []  # proposals without work, of workers that could take more
        self._committed = False  # whether a plan has been since memory was last asked for moves

    @property
    def now(self) -> float:
        """The time of the last event."""
        return self.requests.now

    def run(self) -> Iterator[StepReport]:
        """Serve until nothing is left, reporting every iteration as it completes."""
        for reports in self.turns():
            yield from reports

    def turns(self, waiting: Waiting = nullcontext) -> Iterator[list[StepReport]]:
        """Like `run`, but yields once per turn, and waits inside `waiting()`.

        Raises:
            UsageError: the engine runs already.
        """
        with self.requests.running():
            while not self.requests.over():
                yield self.turn(waiting) if self.requests.unfinished else []
            self.trace.end((), self.now, self.finished.values())

    def turn(self, waiting: Waiting = nullcontext) -> list[StepReport]:
        """Go once around the loop: the iterations that completed, none if another event came first."""
        with self.requests.lock:
            self.requests.receive()
            self.dispatch()
            return self.collect(waiting) if self.requests.unfinished else []

    def dispatch(self) -> None:
        """Propose, place, lay out and submit for each worker; then move KV ahead."""
        now = self.now
        self._idle = []
        for worker in range(self.batching.workers):
            while self.in_flight.has_room(worker):
                proposal = self.batching.propose(worker, now, self.memory)
                for observer in self.observers:
                    proposal = observer.proposed(worker, proposal, self.requests)
                if not proposal.work:
                    self._idle.append(proposal)
                    break
                placement = self.memory.place(proposal, now)
                for observer in self.observers:
                    observer.placed(proposal, placement, self.requests)
                layout = self.attention.layout(proposal.work, placement)
                self.launch(Plan.of(self.in_flight.num_launched, worker, proposal, placement, layout), placement)
        if self._committed:  # not after an arrival: a busy host notices it late, a replay does not
            self._committed = False
            ahead = Placement((), moves=self.memory.ahead(now))
            plan = Plan(self.in_flight.num_launched, self.batching.workers, (), (), moves=ahead.moves)
            self.launch(plan, ahead)  # of moves alone, on a worker of its own

    def launch(self, plan: Plan, placement: Placement) -> None:
        """Submit a plan to the executor, unless there is nothing to do."""
        for observer in self.observers:
            observer.planned(plan, placement)
        if plan.work or plan.moves:
            self.executor.submit(plan, self.requests.start(plan), self.now)

    def collect(self, waiting: Waiting) -> list[StepReport]:
        """Wait for a completion, an arrival, or the time at which a policy wakes.

        The caller holds the lock; it is released while waiting.
        """
        times = [self.arrivals.next_s, *[proposal.wake_at for proposal in self._idle]]
        until = min([time for time in times if time is not None], default=None)
        pause = Proposal(reasons=tuple(dict.fromkeys(r for idle in self._idle for r in idle.reasons)), wake_at=until)
        if not self.in_flight:
            for observer in self.observers:
                pause = observer.proposed(None, pause, self.requests)
            if until is None or until <= self.now:
                why = "; ".join(map(str, pause.reasons)) or "the batching policy proposed no work and gave no reason."
                raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        self.requests.lock.release()
        try:
            with waiting():
                completions = self.executor.wait(until)
        finally:
            self.requests.lock.acquire()
        # The event's own time, not the moment the host woke up: decisions must not depend on that.
        now = completions[-1].ended_s if completions else min(self.clock.now(), math.inf if until is None else until)
        in_vain = not completions and now == until != self.arrivals.next_s
        for observer in self.observers:
            observer.woke(in_vain, bool(self.in_flight))
        if self.sequences and not self.in_flight:
            self.trace.wait(pause.reasons, self.now, now)
        self.requests.reach(now)
        return [self.commit(completion) for completion in completions]

    def commit(self, completion: Completion) -> StepReport:
        """Tell the stages what a completed plan produced, and then its requests."""
        plan, ran, _ = completion
        leaving = self.in_flight.leaving
        produced = {name: new for name, new in ran.tokens.items() if name not in leaving} if leaving else ran.tokens
        self._committed = True
        if plan.work:
            usage = self.memory.commit(plan, produced, self.now)
            self.batching.commit(plan, self.now)
        else:
            usage = self.memory.landed(plan.moves, self.now)
        report = self.requests.take(completion, usage)
        for observer in self.observers:
            observer.completed(report, self.requests)
        self.trace.step(report)
        return report
