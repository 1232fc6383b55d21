"""A run under observation: the stages at work, with independent books, and everything that the laws compare."""

from __future__ import annotations

import copyreg
import io
import math
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor

from minifuse.cell_graph import CellGraph
from minifuse.clock import VirtualClock
from minifuse.contracts.contract import check_cover, check_lanes
from minifuse.engine import Engine
from minifuse.errors import LawBroken, RequestRefused, StageFailed
from minifuse.execute import VirtualExecutor
from minifuse.execute.link import Link
from minifuse.fault import Hung, Wrong
from minifuse.plan import Plan, Proposal
from minifuse.report import KVUsage, Ran, StepReport
from minifuse.request import FinishReason, Request, Sequence
from minifuse.serve.assembly import Stages
from minifuse.stages import Batching, Memory, RunPlan
from minifuse.testing.alarm import alarm
from minifuse.testing.subject import Books, Case, Tokens
from minifuse.testing.waiting import WaitingBooks
from minifuse.trace import Event, Trace

__all__ = ["Observation", "Proposed", "observe"]

MAX_STEPS = 2000
PATIENCE_S = 10.0  # for a run of some milliseconds


@dataclass
class Observation:
    """What one run did, up to its end or to where a law was broken. `submitted_s` is when each step was decided."""

    case: Case
    trace: Trace
    tokens: Tokens
    submitted_s: dict[int, float]
    steps: list[StepReport] = field(default_factory=list)
    answers: dict[str, Sequence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)  # when each request finished, or was aborted
    handed: list[Event] = field(default_factory=list)  # every event, as a run that keeps none hands them on
    costs: dict[int, float] = field(default_factory=dict)  # seconds of each plan on a device of its own
    usage_at_end: KVUsage | None = None
    arrived_s: dict[str, float] = field(default_factory=dict)
    proposals: list[Proposed] = field(default_factory=list)
    plans: dict[int, Plan] = field(default_factory=dict)  # in the order in which they were submitted
    happened: list[tuple[float, Plan | StepReport]] = field(default_factory=list)  # plans submitted, steps completed
    room_at_end: int = 0  # of one sequence, how often memory has room for it when all have ended
    room_at_start: int = 0

    def never_arrived(self, request: Request) -> bool:
        """Whether it was aborted before its time had come, or before the request that it follows had ended."""
        before = (
            -math.inf if request.after is None else self.ended_s.get(request.after, math.inf)
        )  # inf: it was refused
        arrival_s, aborted_s = max(request.arrival_s, before + request.delay_s), self.ended_s.get(request.id, math.inf)
        ended = self.answers.get(request.id)
        return ended is not None and ended.finish_reason is FinishReason.ABORTED and aborted_s <= arrival_s


class Proposed(NamedTuple):
    """What a policy proposed for a worker at a time. With work it becomes a plan, unless memory cannot place it."""

    now: float
    worker: int
    proposal: Proposal | None = None  # None: it raised an error, or did not return


def observe(
    case: Case,
    *,
    run: RunPlan | None = None,
    cost: Callable[[Plan], float] | None = None,
    interrupt_after: int | None = None,
) -> Observation:
    """Run a scenario in virtual time under a technique, checking after every step what must hold between steps.

    Args:
        run: where tokens come from; by default the case's small model.
        cost: seconds of a plan; by default the scenario's.
        interrupt_after: interrupt the run after so many steps, when no copies behind everything are under way.

    Raises:
        LawBroken: a law was broken on the way; its `seen` is the run so far.
    """
    stages = Stages.of(case.row, case.capacity, case.settings)
    books, clock = case.books(stages.memory.host_capacity), VirtualClock()
    run = run or case.runner()
    if stages.batching.depth > 1:
        run = case.running_ahead(run)
    _watch_time(stages.memory, clock)
    trace = WatchedTrace(technique=case.row.name)
    seen = Observation(case, trace, books.tokens, {}, handed=trace.handed)
    policy = WatchedPolicy(stages.batching, books, WaitingBooks(case.row, case.settings), clock, seen)
    engine = Engine(
        policy,  # type: ignore[arg-type]  # it has what the engine calls
        *(stages.memory, stages.attention),
        *(WatchedExecutor(books, clock, cost or case.seconds, run, case.link, seen), clock),
        reader=case.reader,
        trace=trace,
    )
    try:
        with alarm(PATIENCE_S):
            _serve(engine, case, books, seen, policy, interrupt_after)
    except LawBroken as broken:
        broken.seen = broken.seen or seen
        raise
    except Hung as hung:
        raise StageFailed("progress", f"a run did not end within {PATIENCE_S:g} s, and hangs", seen) from hung
    except Exception as error:
        raise StageFailed("contract", f"{type(error).__name__}: {error}", seen) from error
    return seen


def _serve(
    engine: Engine, case: Case, books: Books, seen: Observation, policy: WatchedPolicy, interrupt_after: int | None
) -> None:
    aborts = deque(sorted(case.scenario.aborts))
    for prompts in case.groups:
        _submit(engine, prompts, seen)
    for report in engine.run():
        seen.steps.append(report)
        seen.happened.append((report.ended_s, report))
        engine.memory.check_integrity()
        books.complete(report, _held(engine))
        if len(seen.steps) % 4 == 1:
            _check_free(case, engine.memory, policy.growing)
        seen.ended_s |= dict.fromkeys(report.finished, report.ended_s)
        # Plans that end together are committed together: the books must have been told of all of them before an abort.
        told_of_all = len(seen.plans) - len(seen.steps) == sum(engine.in_flight.num_plans)
        while aborts and aborts[0][0] <= len(seen.steps) and told_of_all:
            _abort(engine, aborts.popleft()[1], books, seen)
        if len(seen.steps) > MAX_STEPS:
            raise LawBroken("progress", f"after {MAX_STEPS} steps {len(engine.sequences)} requests are unfinished")
        # Copies behind everything that are under way then never land: what memory holds for them is held for ever.
        behind = engine.in_flight.num_plans[-1]
        if interrupt_after is not None and len(seen.steps) >= interrupt_after and not behind:
            engine.interrupt()
            engine.memory.check_integrity()
            break
    seen.refused |= engine.refused
    seen.answers = {name: sequence for name, sequence in engine.finished.items() if name not in engine.refused}
    seen.usage_at_end = engine.memory.usage()
    if seen.steps:
        new = Stages.of(case.row, case.capacity, case.settings).memory
        seen.room_at_start, seen.room_at_end = (_room(case, memory, policy.growing) for memory in (new, engine.memory))


def _room(case: Case, memory: Memory, growing: bool, most: int | None = None) -> int:
    """How many of the smallest sequences memory would admit now, counted up to `most`."""
    room, probes = memory.room(), islice(case.probes, most)
    return sum(1 for _ in takewhile(lambda probe: room.admit(probe, growing=growing) is None, probes))


def _check_free(case: Case, memory: Memory, growing: bool) -> None:
    """What is not set aside, in both tiers, and no more is room for newcomers, each of which takes a slot at least."""
    usage = memory.usage()
    free = usage.capacity - usage.reserved + memory.host_capacity - usage.host
    if _room(case, memory, growing, free + 1) > free:
        raise LawBroken("conservation", f"memory has {usage}, and room for more than {free} newcomers")


def _held(engine: Engine) -> set[str]:
    """The sequences that memory must hold."""
    return engine.sequences.keys() | engine.in_flight.leaving.keys()


def _abort(engine: Engine, name: str, books: Books, seen: Observation) -> None:
    if not engine.arrivals.prompts_of(name):
        return  # it was refused, or is left out of this run
    if engine.abort(name):
        for ended in engine.finished.values():
            if ended.finish_reason is FinishReason.ABORTED and ended.id not in seen.ended_s:
                seen.ended_s[ended.id] = engine.now
                books.abort(ended.id, _held(engine))
        engine.memory.check_integrity()


def _submit(engine: Engine, prompts: tuple[Request, ...], seen: Observation) -> None:
    before = _fingerprint(_state(engine.memory))
    try:
        engine.submit(*prompts)
    except RequestRefused as refusal:
        seen.refused |= dict.fromkeys((prompt.id for prompt in prompts), str(refusal))
        if _fingerprint(_state(engine.memory)) != before:
            raise LawBroken("refuse early", f"refusing {prompts[0].id} changed memory") from None


def _check_time(clock: VirtualClock, now: float, what: str) -> None:
    if now != clock.now():
        raise LawBroken("time", f"{what} was told {now} s, and the time is {clock.now()} s")


def _watch_time(memory: Memory, clock: VirtualClock) -> None:
    """Law "time": memory is told when each thing happens. The class is exchanged, so that nothing else is watched."""

    def told(method: str) -> Callable[..., Any]:
        right = getattr(type(memory), method)

        def checked(self: Memory, *arguments: Any) -> Any:
            _check_time(clock, arguments[-1], f"the memory's {method}")
            return right(self, *arguments)

        return checked

    methods = ("place", "commit", "release", "ahead", "landed")
    memory.__class__ = type(type(memory).__name__, (type(memory),), {name: told(name) for name in methods})


class WatchedTrace(Trace):
    """A trace that keeps every event, and the same as a run hands them on that keeps none."""

    def __init__(self, **header: Any) -> None:
        self.handed: list[Event] = []
        self._handing = Trace(into=self.handed.append, **header)
        super().__init__(**header)

    def _add(self, event: Event | StepReport) -> None:
        super()._add(event)
        self._handing._add(event)


class WatchedPolicy:
    """A batching policy whose `propose` must leave memory and sequences as they are (law "pure").

    It is told when each thing happens (law "time").
    """

    def __init__(
        self, policy: Batching, books: Books, waiting: WaitingBooks, clock: VirtualClock, seen: Observation
    ) -> None:
        self.clock = clock
        self.seen = seen
        self.policy = policy
        self.name = policy.name
        self.growing = False  # whether it has proposed newcomers with no more memory than they need at once
        self.books = books
        self.waiting = waiting
        self.workers = policy.workers
        self.depth = policy.depth
        self.held: dict[str, Sequence] = {}

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

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        _check_time(self.clock, now, "the policy's propose")
        before = _fingerprint((_state(memory), self.held))
        self.seen.proposals.append(Proposed(now, worker))
        proposal = self.policy.propose(worker, now, memory)
        self.seen.proposals[-1] = Proposed(now, worker, proposal)
        if _fingerprint((_state(memory), self.held)) != before:
            raise LawBroken("pure", f"propose at {now} changed memory or a sequence")
        _check_work(worker, proposal)
        self.books.propose(worker, proposal)
        self.waiting.propose(proposal, now)
        self.growing |= proposal.growing
        return proposal


# Graphs and tensors by identity: what a graph has found out about its own shape is no change.
_BY_IDENTITY = {**copyreg.dispatch_table, **dict.fromkeys((CellGraph, Tensor), lambda held: (int, (id(held),)))}


def _fingerprint(held: Any) -> bytes:
    """The same bytes for as long as nothing in it changes."""
    try:
        return _pickled(pickle.Pickler, held)
    except Exception:  # a stage may hold what cannot be pickled
        return _pickled(_Tolerant, held)


def _pickled(kind: type[pickle.Pickler], held: Any) -> bytes:
    file = io.BytesIO()
    pickler = kind(file)
    pickler.dispatch_table = _BY_IDENTITY
    pickler.dump(held)
    return file.getvalue()


class _Tolerant(pickle.Pickler):
    """Takes by identity what cannot be pickled: a lock, a lambda, an object whose class was made in a function."""

    def reducer_override(self, held: Any) -> Any:
        if held is int or type(held) in _BY_IDENTITY:
            return NotImplemented
        if isinstance(held, type | FunctionType):
            return int, (id(held),)
        try:
            held.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        except Exception:
            return int, (id(held),)
        return NotImplemented


def _state(memory: Memory) -> Any:
    """What a memory's attributes are, those in `__slots__` too."""
    return object.__getstate__(memory)


class WatchedExecutor(VirtualExecutor):
    """Tells the books of every plan that is submitted, begins, and has been computed."""

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
    """Waves are consecutive ranges that cover the work; lanes, if there are any, name each piece of work once."""
    try:
        check_cover("the waves ", plan.waves, len(plan.work))
        check_lanes("the lanes ", plan.layout.lanes, len(plan.work))
    except Wrong as wrong:
        raise LawBroken("layout", f"step {plan.step} has {wrong.found}: {wrong.allowed}") from None


def _check_work(worker: int, proposal: Proposal) -> None:
    """No token, or node, is computed twice by one plan."""
    for one, two in pairwise(sorted(proposal.work)):
        if one.sequence == two.sequence and two.start < one.stop:
            raise LawBroken("conservation", f"worker {worker} got the same work twice in one plan: {one} and {two}")
