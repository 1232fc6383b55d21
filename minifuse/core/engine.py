"""The only loop in the project, in which the stages take turns."""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Layout, Placement, Plan, Proposal
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import Request
from minifuse.core.requests import Observer, Requests
from minifuse.core.stages import Arrivals, Attention, Batching, Clock, Executor, Memory, Reader


@dataclass(eq=False, repr=False)
class Engine:
    """Serves requests with one batching policy, its workers, one memory and one attention."""

    batching: Batching
    memory: Memory
    attention: Attention
    executor: Executor
    clock: Clock
    _: KW_ONLY
    reader: Reader
    arrivals: Arrivals
    observer: Observer = field(default_factory=Observer)

    def __post_init__(self) -> None:
        self.requests = self.make_requests()
        self.in_flight = self.requests.in_flight
        self._idle: list[Proposal] = []  # proposals without work, from workers that could take another plan

    def make_requests(self) -> Requests:
        return Requests(self.batching, self.memory, self.reader, self.arrivals)

    @property
    def now(self) -> float:
        """Return the time of the last event."""
        return self.requests.now

    def submit(self, *prompts: Request) -> None:
        """Submit one request, given as its prompts. Raise `RequestRefused` if it cannot be served."""
        self.requests.submit(prompts, self.now)

    def run(self) -> Iterator[StepReport]:
        """Serve until nothing is left, reporting every iteration as it completes."""
        while self.requests.unfinished:
            yield from self.turn()

    def turn(self) -> list[StepReport]:
        """Run one turn of the loop; return the reports of the iterations completed."""
        self.requests.receive()
        self.dispatch()
        return self.collect() if self.requests.unfinished else []

    def dispatch(self) -> None:
        """Plan work for each worker that can take more: propose, place, lay out, submit."""
        self._idle, now = [], self.now
        for worker in range(self.batching.workers):
            while self.in_flight.has_room(worker):
                proposal = self.batching.propose(worker, now, self.memory)
                proposal = self.observer.proposed(worker, proposal, self.requests)
                if not proposal.work:
                    self._idle.append(proposal)
                    break
                placement = self.memory.place(proposal, now)
                self.observer.placed(proposal, placement, self.requests)
                layout = self.attention.layout(proposal.work, placement)
                self.launch(worker, proposal, placement, layout)

    def launch(self, worker: int, proposal: Proposal, placement: Placement, layout: Layout) -> None:
        """Freeze what was decided into a plan, and submit it to the executor."""
        plan = Plan(
            step=self.in_flight.num_launched,
            worker=worker,
            work=proposal.work,
            places=placement.places,
            admitted=tuple([sequence.id for sequence in proposal.admit]),
            layout=layout,
            moves=placement.moves,
            reasons=proposal.reasons,
            phase=proposal.phase,
            evicted=tuple([sequence.id for sequence in proposal.evict]),
            reused=placement.reused,
        )
        self.observer.planned(plan, placement)
        self.executor.submit(plan, self.requests.start(plan), self.now)

    def collect(self) -> list[StepReport]:
        """Wait for a completion, an arrival, or the time at which a policy wakes."""
        times = [self.arrivals.next_s, *[proposal.wake_at for proposal in self._idle]]
        until = min([time for time in times if time is not None], default=None)
        reasons = tuple(dict.fromkeys([reason for proposal in self._idle for reason in proposal.reasons]))
        if not self.in_flight:
            reasons = self.observer.proposed(None, Proposal(reasons=reasons, wake_at=until), self.requests).reasons
            if until is None or until <= self.now:
                why = "; ".join(map(str, reasons)) or "the batching policy proposed no work and gave no reason."
                raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        completions = self.wait(until)
        # The event's own time, not the moment the host woke up: decisions must not depend on the latter.
        now = completions[-1].ended_s if completions else min(self.clock.now(), math.inf if until is None else until)
        in_vain = not completions and now == until != self.arrivals.next_s
        self.observer.waited(reasons, now, in_vain, self.requests)
        self.requests.reach(now)
        return [self.commit(completion) for completion in completions]

    def wait(self, until: float | None) -> list[Completion]:
        """Block until a plan completes, or until time `until`."""
        return self.executor.wait(until)

    def commit(self, completion: Completion) -> StepReport:
        """Pass what a completed plan produced to the stages, then to its requests."""
        usage = self.written(completion)
        report = self.requests.take(completion, usage)
        self.observer.completed(report, self.requests)
        return report

    def written(self, completion: Completion) -> KVUsage:
        """Tell memory and the policy that a plan has run. Returns the memory in use."""
        plan, ran, _ = completion
        leaving = self.in_flight.leaving
        produced = {name: new for name, new in ran.tokens.items() if name not in leaving} if leaving else ran.tokens
        usage = self.memory.commit(plan, produced, self.now)
        self.batching.commit(plan, self.now)
        return usage
