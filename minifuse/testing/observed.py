"""Runs a case under observation: independent records are checked after every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile

from minifuse.contracts.checks import Checks
from minifuse.contracts.fault import Hung
from minifuse.core.clock import VirtualClock
from minifuse.core.errors import CheckerFailed, LawBroken, RequestRefused, StageFailed
from minifuse.core.plan import Plan
from minifuse.core.request import FinishReason, Request
from minifuse.core.stages import RunPlan
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Memory
from minifuse.testing.alarm import alarm
from minifuse.testing.failure import failure
from minifuse.testing.fingerprint import fingerprint, state
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Books, Case
from minifuse.testing.waiting import WaitingBooks
from minifuse.testing.watched import WatchedExecutor, WatchedMemory, WatchedPolicy, WatchedTrace

MAX_STEPS = 2000  # or as many as a long scenario needs
PATIENCE_S = 10.0  # for a run of some milliseconds
LEAST_PACE = 50  # steps per second that a long scenario takes at least


def observe(
    case: Case,
    *,
    run: RunPlan | None = None,
    cost: Callable[[Plan], float] | None = None,
    interrupt_after: int | None = None,
) -> Observation:
    """Run a case in virtual time, and check after every step what must hold.

    Args:
        run: computes the tokens; by default, the case's small model does.
        cost: returns the seconds of a plan; by default, `seconds` of the scenario.
        interrupt_after: interrupt the run after this many steps, once no copies of the moment `behind` are in flight.

    Raises:
        LawBroken: a law was broken during the run; the error's `seen` is the run up to there.
        CheckerFailed: the code that checks the run raised an error.
    """
    stages = case.stages()
    books, clock = case.books(stages.memory), VirtualClock()
    run = run or (case.replay({}) if case.scenario.replayed else case.runner())
    if stages.batching.depth > 1:
        run = case.running_ahead(run)
    trace = WatchedTrace(technique=case.row.name)
    seen = Observation(case, trace, books.tokens, {}, handed=trace.handed)
    checks = Checks(stages.batching, stages.memory, stages.attention)
    policy = WatchedPolicy(stages.batching, checks, books, WaitingBooks(case.choices), clock, seen)
    engine = ServingEngine(
        policy,  # type: ignore[arg-type]  # it has what the engine calls
        *(WatchedMemory(stages.memory, clock), stages.attention),  # type: ignore[arg-type]
        *(WatchedExecutor(books, clock, cost or case.scenario.seconds, run, case.link(stages.memory), seen), clock),
        reader=case.reader,
        trace=trace,
        observers=(checks,),
    )
    policy.requests = engine.requests
    patience_s = max(PATIENCE_S, case.most_steps / LEAST_PACE)
    try:
        with alarm(patience_s):
            _serve(engine, case, books, seen, policy, interrupt_after)
    except (Exception, Hung) as error:
        told = checks.fault_of(error, engine.requests) or _told(error, seen, patience_s)
        if isinstance(told, LawBroken):
            told.seen = told.seen or seen
        raise told from (None if told is error else error)
    return seen


def _told(error: BaseException, seen: Observation, patience_s: float) -> LawBroken | CheckerFailed:
    """Return the error to raise when no check of a user's stage explains `error`."""
    if isinstance(error, LawBroken):
        return error
    if isinstance(error, Hung):
        return StageFailed("progress", f"a run did not end within {patience_s:g} s, and hangs")
    return failure(error, seen.case.row, seen, in_law=False)


def _serve(
    engine: ServingEngine,
    case: Case,
    books: Books,
    seen: Observation,
    policy: WatchedPolicy,
    interrupt_after: int | None,
) -> None:
    aborts = deque(sorted(case.scenario.aborts))
    for prompts in case.groups:
        _submit(engine, prompts, seen)
    for report in engine.run():
        seen.steps.append(report)
        seen.happened.append((report.ended_s, report))
        engine.memory.check_integrity()
        books.complete(report, _held(engine))
        if len(seen.steps) % max(4, case.capacity // 64) == 1:  # a check's cost grows with the free room
            _check_free(case, engine.memory, books, policy.growing)
        seen.ended_s |= dict.fromkeys(report.finished, report.ended_s)
        # Plans that end together are committed together: the books must have been told of all of them before an abort.
        told_of_all = len(seen.plans) - len(seen.steps) == len(engine.in_flight.running)
        while aborts and aborts[0][0] <= len(seen.steps) and told_of_all:
            _abort(engine, aborts.popleft()[1], books, seen)
        if len(seen.steps) > max(MAX_STEPS, case.most_steps):
            raise LawBroken(
                "progress", f"{len(engine.sequences)} requests are unfinished, after {MAX_STEPS} steps or more"
            )
        # After an interrupt, `behind` copies in flight would never complete, and their slots would stay in use.
        behind = engine.in_flight.num_running[engine.batching.workers]
        if interrupt_after is not None and len(seen.steps) >= interrupt_after and not behind:
            engine.interrupt()
            engine.memory.check_integrity()
            break
    seen.refused |= engine.refused
    seen.answers = {name: sequence for name, sequence in engine.finished.items() if name not in engine.refused}
    seen.usage_at_end = engine.memory.usage()
    if seen.steps:
        new = case.stages().memory
        seen.room_at_start, seen.room_at_end = (_room(case, memory, policy.growing) for memory in (new, engine.memory))


def _room(case: Case, memory: Memory, growing: bool, most: int | None = None) -> int:
    """Count how many sequences of the smallest size memory would admit now, up to `most`."""
    room, probes = memory.room(), islice(case.probes, most)
    return sum(1 for _ in takewhile(lambda probe: room.admit(probe, growing=growing) is None, probes))


def _check_free(case: Case, memory: Memory, books: Books, growing: bool) -> None:
    """Check that memory admits no more newcomers than it has free slots, on both tiers."""
    free = books.num_free(memory)
    if _room(case, memory, growing, free + 1) > free:
        raise LawBroken("conservation", f"memory has {memory.usage()}, and room for more than {free} newcomers")


def _held(engine: ServingEngine) -> set[str]:
    """Return the sequences that memory must hold."""
    return engine.sequences.keys() | engine.in_flight.leaving.keys()


def _abort(engine: ServingEngine, name: str, books: Books, seen: Observation) -> None:
    if not engine.arrivals.prompts_of(name):
        return  # the request was refused, or is left out of this run
    if engine.abort(name):
        for ended in engine.finished.values():
            if ended.finish_reason is FinishReason.ABORTED and ended.id not in seen.ended_s:
                seen.ended_s[ended.id] = engine.now
                books.abort(ended.id, _held(engine))
        engine.memory.check_integrity()


def _submit(engine: ServingEngine, prompts: tuple[Request, ...], seen: Observation) -> None:
    before = fingerprint(state(engine.memory))
    try:
        engine.submit(*prompts)
    except RequestRefused as refusal:
        seen.refused |= dict.fromkeys((prompt.id for prompt in prompts), str(refusal))
        if fingerprint(state(engine.memory)) != before:
            raise LawBroken("refuse early", f"refusing {prompts[0].id} changed memory") from None
