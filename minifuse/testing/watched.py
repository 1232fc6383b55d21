"""Wraps the stages of an observed run: every event goes to the independent records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from minifuse.contracts.checks import Checks
from minifuse.contracts.form import check_cover, check_lanes
from minifuse.core.clock import VirtualClock
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, Proposal
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import Sequence
from minifuse.core.requests import Requests
from minifuse.core.stages import RunPlan
from minifuse.execute import VirtualExecutor
from minifuse.execute.link import Link
from minifuse.stages import Batching, Memory
from minifuse.testing.filling import FillBooks
from minifuse.testing.fingerprint import fingerprint, state
from minifuse.testing.observation import Observation, Proposed
from minifuse.testing.subject import Books
from minifuse.testing.waiting import WaitingBooks
from minifuse.trace.log import Event, Trace

FEW = 64  # sequences
TIMED = ("place", "commit", "release", "ahead", "landed")  # methods of a memory whose last argument is the time


def _check_time(clock: VirtualClock, now: float, what: str) -> None:
    if now != clock.now():
        raise LawBroken("time", f"{what} was told {now} s, and the time is {clock.now()} s")


class WatchedMemory:
    """Wraps a memory; checks that each event is passed with the current time (law "time")."""

    def __init__(self, memory: Memory, clock: VirtualClock) -> None:
        self.memory = memory
        self.clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.memory, name)
        if name not in TIMED:
            return found

        def timed(*arguments: Any) -> Any:
            _check_time(self.clock, arguments[-1], f"the memory's {name}")
            return found(*arguments)

        return timed


class WatchedTrace(Trace):
    """A trace that also collects every event as `Trace(into=...)` would hand it on."""

    def __init__(self, **header: Any) -> None:
        self.handed: list[Event] = []
        self._handing = Trace(into=self.handed.append, **header)
        super().__init__(**header)

    def _add(self, event: Event | StepReport) -> None:
        super()._add(event)
        self._handing._add(event)


@dataclass(eq=False)
class WatchedPolicy:
    """Wraps a policy; checks that `propose` changes neither memory nor sequences (law "pure").

    Also checks that each event is passed with the current time (law "time").
    """

    policy: Batching
    checks: Checks
    books: Books
    waiting: WaitingBooks
    clock: VirtualClock
    seen: Observation
    growing: bool = False  # whether a proposal admitted newcomers with only the memory that they need at once
    num_asked: int = 0
    held: dict[str, Sequence] = field(default_factory=dict)
    requests: Requests = field(init=False)  # the engine's; set after the engine is made with this policy

    def __post_init__(self) -> None:
        self.name, self.workers, self.depth = self.policy.name, self.policy.workers, self.policy.depth
        self.filling = FillBooks(self.seen.case, self.policy, self.waiting)

    def receive(self, sequence: Sequence) -> None:
        self.seen.arrived_s[sequence.id] = self.clock.now()
        self.policy.receive(sequence)
        self.held[sequence.id] = sequence
        self.books.receive(sequence)
        self.waiting.receive(sequence)

    def release(self, sequence: Sequence) -> None:
        self.held.pop(sequence.id, None)
        self.policy.release(sequence)
        self.waiting.release(sequence, self.clock.now())

    def commit(self, plan: Plan, now: float) -> None:
        _check_time(self.clock, now, "the policy's commit")
        self.policy.commit(plan, now)
        self.waiting.commit(now)

    def propose(self, worker: int, now: float, watched: WatchedMemory) -> Proposal:
        memory = watched.memory
        _check_time(self.clock, now, "the policy's propose")
        self.num_asked += 1
        # Comparing takes time for each sequence. With n sequences, if n > FEW, only one proposal in n is compared.
        looks = len(self.held) <= FEW or self.num_asked % len(self.held) == 0
        before = fingerprint((state(memory), self.held)) if looks else b""
        self.seen.proposals.append(Proposed(now, worker))
        proposal = self.policy.propose(worker, now, memory)
        proposal = self.checks.proposed(worker, proposal, self.requests)
        self.seen.proposals[-1] = Proposed(now, worker, proposal)
        self.seen.usages.append(memory.usage())
        if looks and fingerprint((state(memory), self.held)) != before:
            raise LawBroken("pure", f"propose at {now} changed memory or a sequence")
        _check_work(worker, proposal)
        self.books.propose(worker, proposal)
        self.waiting.propose(proposal, now)
        self.growing |= proposal.growing
        self.filling.propose(proposal, memory, now, growing=self.growing)
        return proposal


class WatchedExecutor(VirtualExecutor):
    """Passes every plan to the books when it is submitted, begun and computed."""

    def __init__(
        self,
        books: Books,
        clock: VirtualClock,
        cost: Callable[[Plan], float],
        run: RunPlan,
        link: Link,
        seen: Observation,
    ) -> None:
        super().__init__(
            *(clock, lambda plan: seen.costs.setdefault(plan.step, cost(plan)), self.compute),
            link=link,
            shared=seen.case.scenario.shared,
        )
        self.books = books
        self.run = run
        self.seen = seen

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self.seen.plans[plan.step] = plan
        self.seen.submitted_s[plan.step] = now
        self.seen.happened.append((now, plan))
        _check_layout(plan)
        self.books.submit(plan)
        super().submit(plan, sequences, now)

    def start(self, plan: Plan, sequences: dict[str, Sequence]) -> None:
        self.books.begin(plan, sequences)
        super().start(plan, sequences)

    def compute(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        ran = self.run(plan, sequences)
        self.books.ran(plan, ran)
        return ran


def _check_layout(plan: Plan) -> None:
    """Raise `Wrong` unless a plan's waves cover its work, and its lanes, too.

    Waves are consecutive ranges. Lanes name each piece of work once. A plan may have no lanes.
    """
    check_cover(f"step {plan.step} has the waves ", plan.waves, len(plan.work))
    check_lanes(f"step {plan.step} has the lanes ", plan.layout.lanes, len(plan.work))


def _check_work(worker: int, proposal: Proposal) -> None:
    """Raise `LawBroken` if a proposal computes the same token or node twice."""
    for one, two in pairwise(sorted(proposal.work)):
        if one.sequence == two.sequence and two.start < one.stop:
            raise LawBroken("conservation", f"worker {worker} got the same work twice in one plan: {one} and {two}")
