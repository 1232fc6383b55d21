"""The contract of a batching policy (docs/stages.md): what its methods may return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, ClassVar

from minifuse.contracts.contract import (
    Contract,
    Method,
    check_attribute,
    check_cover,
    check_nothing,
    check_reason,
    check_time,
    check_tuple,
    is_whole,
)
from minifuse.errors import RequestRefused, UsageError
from minifuse.fault import Wrong, blamed, shown
from minifuse.plan import Plan, Proposal, Reason
from minifuse.request import Phase, Sequence
from minifuse.stages import Memory
from minifuse.work import TRANSFORMER, Span, Work

__all__ = ["BatchingContract"]

MOST_WORKERS = 1024
DONE = -1  # instead of the worker that a node is planned on


END: Any = object()


class BatchingContract(Contract):
    """What a batching policy was told and has proposed, and whether what it proposes next can be done."""

    methods: ClassVar[dict[str, Method]] = {
        "check": Method(("model, cell_types",), (UsageError,)),
        "receive": Method(("sequence",), (RequestRefused,)),
        "propose": Method(("worker, now, memory",), note="what cannot be done now waits, with a Reason"),
        "commit": Method(("plan, now",)),
        "release": Method(("sequence",), note="it is also called for a request that was refused, or never admitted"),
    }
    hooks: ClassVar[dict[str, Method]] = {
        "rank": Method(("sequence",)),
        "admission": Method(("sequence, joining, now",)),
        "victims": Method(("running",)),
        "wake_at": Method(("now",)),
    }

    def __init__(self, cls: type[Any]) -> None:
        super().__init__(cls)
        self.known: dict[str, Sequence] = {}  # received and not released
        self.admitted: set[str] = set()
        self.flights: dict[str, list[int]] = {}  # sequence -> the worker of each of its plans in flight
        self.stops: dict[str, int] = {}  # of each that was admitted: the end of its last work
        self.nodes: dict[str, dict[int, int]] = {}  # of each graph: node -> the worker it is planned on, or DONE
        self.state: list[tuple[Sequence, int, Phase]] = []  # as the policy was asked
        self.last_rank: Any = None

    def made(self, stage: Any, *arguments: Any) -> None:
        whole = f"give a whole number from 1 to {MOST_WORKERS}"
        for name in ("workers", "depth"):
            check_attribute(stage, name, lambda v: is_whole(v, 1) and v <= MOST_WORKERS, whole)
        check_attribute(stage, "granularity", lambda v: v in ("cell", "operator"), "give 'cell' or 'operator'")
        budget = "give None or a whole number, at least 1"
        check_attribute(stage, "token_budget", lambda v: v is None or is_whole(v, 1), budget)

    def check(self, policy: Any, result: Any, *arguments: Any) -> None:
        check_nothing(result, "check raises UsageError or returns nothing")

    def receive(self, policy: Any, result: Any, sequence: Sequence) -> None:
        check_nothing(result, "receive raises RequestRefused or returns nothing")
        self.known[sequence.id] = sequence

    def release(self, policy: Any, result: Any, sequence: Sequence) -> None:
        check_nothing(result)
        self.known.pop(sequence.id, None)
        self.nodes.pop(sequence.id, None)
        self.admitted.discard(sequence.id)
        self.stops.pop(sequence.id, None)

    def commit(self, policy: Any, result: Any, plan: Plan, now: float) -> None:
        check_nothing(result)
        for name in {*plan.admitted, *plan.sequences}:
            flights = self.flights.get(name, [])
            if plan.worker in flights:
                flights.remove(plan.worker)
            if not flights:
                self.flights.pop(name, None)
        for work in plan.work:
            if work.sequence in self.nodes:
                self.nodes[work.sequence][work.start] = DONE

    # --- the hooks of a policy with a queue

    def rank(self, policy: Any, result: Any, sequence: Sequence) -> Any:
        before = result if self.last_rank is None else self.last_rank
        try:
            right = isinstance(result < before, bool) and result == result and isinstance(before < result, bool)
        except Exception:
            right = False
        if not right or any(part != part for part in (result if isinstance(result, tuple) else ())):
            than = "" if before is result else f", and one before it was {shown(before)}"
            raise Wrong(
                f"{shown(result)}{than}", "ranks are compared: give numbers, or tuples of numbers, none of it NaN"
            )
        self.last_rank = result
        return result

    def admission(self, policy: Any, result: Any, sequence: Sequence, *arguments: Any) -> Reason | None:
        if result is not None:
            check_reason("", result, (sequence.id,))
        return result  # type: ignore[no-any-return]  # it has been checked

    def victims(self, policy: Any, result: Any, running: Seq[Sequence]) -> Iterator[Sequence]:
        if not isinstance(result, Iterable):
            raise Wrong(shown(result), "give some of the running sequences, in the order in which they are evicted")
        return self._each(result, running)

    def _each(self, victims: Iterable[Sequence], running: Seq[Sequence]) -> Iterator[Sequence]:
        left = {sequence.id: sequence for sequence in running}
        given: Iterator[Any] = iter(victims)
        while True:
            with blamed(self.cls, "victims"):  # but where it waits: what is closed there is no fault
                victim = next(given, END)
                if victim is END:
                    return
                if not isinstance(victim, Sequence) or left.pop(victim.id, None) is not victim:
                    found = shown(victim) if not isinstance(victim, Sequence) else f"the sequence {victim.id!r}"
                    raise Wrong(f"{found} among others", "give sequences of the list it was given, none of them twice")
            yield victim

    def wake_at(self, policy: Any, result: Any, now: float) -> float | None:
        check_time("", result, now)
        return result  # type: ignore[no-any-return]  # it has been checked

    # --- proposals

    def before_propose(self, worker: int, now: float, memory: Memory) -> None:
        # Not of those that wait, whose number has no bound: law "pure" looks at all.
        running = [self.known[name] for name in self.admitted if name in self.known]
        self.state = [(sequence, len(sequence.tokens), sequence.phase) for sequence in running]

    def propose(self, policy: Any, result: Any, worker: int, now: float, memory: Memory) -> Proposal:
        if not isinstance(result, Proposal):
            raise Wrong(shown(result), "give a Proposal (minifuse.plan), without work if it waits")
        for sequence, length, phase in self.state:
            if len(sequence.tokens) != length or sequence.phase is not phase:
                raise Wrong(*_changed(sequence))
        where = "a Proposal whose "
        check_tuple(f"{where}work is ", result.work, Work, "Work(sequence.id, start, stop)")
        check_tuple(f"{where}admit is ", result.admit, Sequence, "the sequences that it was given in receive")
        check_tuple(f"{where}evict is ", result.evict, Sequence, "the sequences that it was given in receive")
        check_tuple(f"{where}reasons is ", result.reasons, Reason, "Reason(code, sequence.id, text)")
        for reason in result.reasons:
            check_reason(f"{where}reasons has ", reason, self.known)
        check_time(f"{where}wake_at is ", result.wake_at, now)
        if result.phase not in (Phase.RUNNING, Phase.PREPROCESSING):
            raise Wrong(f"{where}phase is {shown(result.phase)}", "give Phase.RUNNING or Phase.PREPROCESSING")
        if not isinstance(result.growing, bool):
            raise Wrong(f"{where}growing is {shown(result.growing)}", "give True or False")
        if not result.work:
            self._check_waiting(result, now)
            return result
        if result.wake_at is not None:
            raise Wrong(f"{where}wake_at is {result.wake_at!r} and which has work", "only one that waits is woken")
        self._check_admission(policy, result)
        check_cover(f"{where}waves are ", result.waves, len(result.work))
        self._check_work(policy, result, worker, memory)
        self._note(result, worker)
        return replace(result, room=None)  # tried again when it is placed, so that nothing hangs on a room it kept

    def _check_waiting(self, proposal: Proposal, now: float) -> None:
        if proposal.admit or proposal.evict or proposal.waves:
            raise Wrong("a Proposal without work that admits, evicts or has waves", "these count with work only")

    def _check_admission(self, policy: Any, proposal: Proposal) -> None:
        seen: set[str] = set()
        for verb, sequences in (("evicts", proposal.evict), ("admits", proposal.admit)):
            for sequence in sequences:
                name = sequence.id
                found = f"a Proposal that {verb} {name!r}"
                if self.known.get(name) is not sequence:
                    raise Wrong(
                        f"{found}, which does not wait or run",
                        "give sequences received and not yet released",
                        "conservation",
                    )
                if name in seen:
                    raise Wrong(f"{found} a second time", "name each sequence once", "conservation")
                seen.add(name)
                if (name in self.admitted) == (verb == "admits"):
                    state = "which runs already" if verb == "admits" else "which does not run"
                    raise Wrong(f"{found}, {state}", "admit those that wait, and evict those that run", "conservation")
                if verb == "admits" and sequence.phase not in (Phase.RECEIVED, Phase.SUSPENDED):
                    raise Wrong(*_changed(sequence))
        if proposal.evict and policy.workers > 1:
            raise Wrong(f"a Proposal that evicts and {policy.workers} workers", "a policy that evicts has one worker")
        for sequence in proposal.evict:
            if sequence.id in self.flights:
                raise Wrong(
                    f"a Proposal that evicts {sequence.id!r}, whose last work is not done",
                    "wait for it",
                    "conservation",
                )

    def _check_work(self, policy: Any, proposal: Proposal, worker: int, memory: Memory) -> None:
        allowed = (self.admitted | {s.id for s in proposal.admit}) - {s.id for s in proposal.evict}
        pieces: dict[str, list[Work]] = {}
        for work in proposal.work:
            if not isinstance(work.sequence, str) or work.sequence not in self.known:
                ids = "the id of a request that was received and has not been released: sequence.id"
                raise Wrong(f"a Proposal with {shown(work)}, whose sequence is unknown", f"give {ids}", "conservation")
            if work.sequence not in allowed:
                raise Wrong(
                    f"a Proposal with {shown(work)}, whose sequence was never admitted, or is evicted",
                    "name it in admit as well",
                    "conservation",
                )
            if not is_whole(work.start) or not is_whole(work.stop) or work.start >= work.stop:
                rule = "tokens [start, stop) are whole numbers, start below stop: leave empty spans out"
                raise Wrong(f"a Proposal with {shown(work)}", rule)
            pieces.setdefault(work.sequence, []).append(work)
        budget = policy.token_budget
        if budget is not None and sum(work.num_tokens for work in proposal.work) > budget:
            total = sum(work.num_tokens for work in proposal.work)
            raise Wrong(f"a Proposal of {total} tokens of work", f"its token_budget is {budget}", "budget")
        waves = proposal.waves or (Span(0, len(proposal.work)),)
        planned: dict[tuple[str, int], int] = {}  # node -> its wave
        for number, (start, stop) in enumerate(waves):
            for work in proposal.work[start:stop]:
                if self.known[work.sequence].graph is not None:
                    self._check_node(work, worker, number, planned)
        for name, works in pieces.items():
            if self.known[name].graph is None:
                self._check_tokens(policy, self.known[name], works, worker, memory)

    def _check_tokens(self, policy: Any, sequence: Sequence, works: list[Work], worker: int, memory: Memory) -> None:
        spans = sorted((work.start, work.stop) for work in works)
        if any(work.cell != TRANSFORMER for work in works):
            raise Wrong(f"{_tokens(works)} as the cell {works[0].cell!r}", "a text has no cells: leave the cell out")
        flights = self.flights.get(sequence.id, ())
        if flights and (policy.depth == 1 or flights[-1] != worker):
            wait = "wait until commit has told of its plan"
            raise Wrong(f"{_tokens(works)}, whose last work is not done", wait, "conservation")
        if policy.depth > 1 and (stop := self.stops.get(sequence.id)):  # it goes on from what it has planned itself
            expected = [Span(stop, max(stop + 1, len(sequence.request.prompt)))]
        else:
            expected = [span for span in memory.missing(sequence) if span.stop > span.start]
        if len(spans) == len(expected) == 1 and spans[0] == expected[0]:
            return  # as of most sequences
        left = list(expected)
        for start, stop in spans:
            if not left or start != left[0].start or stop > left[0].stop:
                missing = " and ".join(f"[{a}, {b})" for a, b in expected) or "none"
                raise Wrong(
                    _tokens(works),
                    f"memory misses {missing} of its {len(sequence)}: give these, or the first of them, once",
                    "counting",
                )
            left[0] = Span(stop, left[0].stop)
            if stop == left[0].stop:
                del left[0]

    def _check_node(self, work: Work, worker: int, wave: int, planned: dict[tuple[str, int], int]) -> None:
        name, node = work.sequence, work.start
        graph, known = self.known[name].unfolded, self.nodes.setdefault(name, {})
        if work.stop != node + 1 or node >= len(graph) or graph.nodes[node].cell != work.cell:
            allowed = f"a node is Work(sequence.id, node, node + 1, its cell), of the {len(graph)} nodes of its graph"
            raise Wrong(f"a Proposal with {shown(work)}", allowed)
        if node in known or (name, node) in planned:
            raise Wrong(f"a Proposal with {shown(work)}, which was planned before", "compute each node once", "order")
        for source in graph.sources[node]:
            if known.get(source) not in (DONE, worker) and planned.get((name, source), wave) >= wave:
                found = f"a Proposal with {shown(work)}, which reads node {source}"
                raise Wrong(found, "that has not been computed, nor planned before it", "order")
        planned[name, node] = wave

    def _note(self, proposal: Proposal, worker: int) -> None:
        self.admitted -= {sequence.id for sequence in proposal.evict}
        self.admitted |= {sequence.id for sequence in proposal.admit}
        stops = {sequence.id: 0 for sequence in proposal.admit}
        for work in proposal.work:
            stops[work.sequence] = max(stops.get(work.sequence, 0), work.stop)
            if self.known[work.sequence].graph is not None:
                self.nodes[work.sequence][work.start] = worker
        for name, stop in stops.items():
            self.flights.setdefault(name, []).append(worker)
            self.stops[name] = stop


def _tokens(works: list[Work]) -> str:
    """Pieces of work of one text, for a sentence."""
    spans = " and ".join(f"[{start}, {stop})" for _, start, stop, _ in works)
    return f"a Proposal with the tokens {spans} of {works[0].sequence!r}"


def _changed(sequence: Sequence) -> tuple[str, str, str]:
    return f"and had changed {sequence.id!r}", "sequences are read, and the engine alone writes them", "pure"
