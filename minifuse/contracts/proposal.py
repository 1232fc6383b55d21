"""What a batching policy may propose (docs/stages.md)."""

from __future__ import annotations

from typing import Any

from minifuse.contracts.values import check_cover, check_reason, check_time, check_tuple, is_whole
from minifuse.core.plan import TRANSFORMER, Plan, Proposal, Reason, Span, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.requests import Requests
from minifuse.core.unfolded import unfolded
from minifuse.fault import Wrong, shown
from minifuse.stages import Memory

__all__ = ["Planned", "check_proposal"]


DONE = -1  # instead of the worker that a node is planned on


class Planned:
    """What a policy has proposed so far, of the sequences that have not ended."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}  # of each admitted sequence, in tokens, as the engine has written it
        self.stops: dict[str, int] = {}  # sequence -> the end of its last work
        self.nodes: dict[str, dict[int, int]] = {}  # sequence -> node -> the worker that it is planned on, or DONE

    def add(self, proposal: Proposal, worker: int, requests: Requests) -> None:
        """A proposal with work has been checked and placed."""
        for sequence in proposal.admit:
            self.lengths[sequence.id], self.stops[sequence.id] = len(sequence), 0
        for work in proposal.work:
            self.stops[work.sequence] = max(self.stops.get(work.sequence, 0), work.stop)
            if requests.sequences[work.sequence].graph is not None:
                self.nodes.setdefault(work.sequence, {})[work.start] = worker

    def complete(self, plan: Plan, requests: Requests) -> None:
        """A plan has run, and its tokens are written down."""
        for work in plan.work:
            sequence = requests.sequences.get(work.sequence)
            if sequence is not None:
                self.lengths[work.sequence] = len(sequence)
                self.nodes.get(work.sequence, {}).update({work.start: DONE})
        for gone in self.lengths.keys() - requests.sequences.keys():
            for books in (self.lengths, self.stops, self.nodes):
                books.pop(gone, None)

    def check_unchanged(self, requests: Requests) -> None:
        """Raise `Wrong` if a policy has written a sequence that was admitted."""
        for name, length in self.lengths.items():
            sequence = requests.sequences.get(name)
            if sequence is not None and len(sequence) != length:
                allowed = "sequences are read, and the engine alone writes them"
                raise Wrong(f"and had changed {name!r}", allowed, "pure")


def check_proposal(
    proposal: Any, policy: Any, memory: Memory, requests: Requests, planned: Planned, worker: int
) -> None:
    """Raise `Wrong` unless a proposal has the right form, and work that memory misses."""
    if not isinstance(proposal, Proposal):
        raise Wrong(shown(proposal), "give a Proposal (minifuse.core.plan), without work if it waits")
    where = "a Proposal whose "
    check_tuple(f"{where}work is ", proposal.work, Work, "Work(sequence.id, start, stop)")
    check_tuple(f"{where}admit is ", proposal.admit, Sequence, "the sequences that it was given in receive")
    check_tuple(f"{where}evict is ", proposal.evict, Sequence, "the sequences that it was given in receive")
    check_tuple(f"{where}reasons is ", proposal.reasons, Reason, "Reason(code, sequence.id, text)")
    for reason in proposal.reasons:
        check_reason(f"{where}reasons has ", reason, requests.sequences)
    check_time(f"{where}wake_at is ", proposal.wake_at, requests.now)
    if proposal.phase not in (Phase.RUNNING, Phase.PREPROCESSING):
        raise Wrong(f"{where}phase is {shown(proposal.phase)}", "give Phase.RUNNING or Phase.PREPROCESSING")
    if not isinstance(proposal.growing, bool):
        raise Wrong(f"{where}growing is {shown(proposal.growing)}", "give True or False")
    if not proposal.work:
        if proposal.admit or proposal.evict or proposal.waves:
            raise Wrong("a Proposal without work that admits, evicts or has waves", "these count with work only")
        return
    if proposal.wake_at is not None:
        raise Wrong(f"{where}wake_at is {proposal.wake_at!r} and which has work", "only one that waits is woken")
    if proposal.evict and policy.workers > 1:
        raise Wrong(f"a Proposal that evicts and {policy.workers} workers", "a policy that evicts has one worker")
    check_cover(f"{where}waves are ", proposal.waves, len(proposal.work))
    _check_work(proposal, policy.token_budget, memory, requests, planned, worker)


def _check_work(
    proposal: Proposal, budget: int | None, memory: Memory, requests: Requests, planned: Planned, worker: int
) -> None:
    sequences = requests.sequences
    texts: dict[str, list[Work]] = {}
    nodes: dict[tuple[str, int], tuple[Work, int]] = {}  # each with its wave
    for number, (start, stop) in enumerate(proposal.waves or (Span(0, len(proposal.work)),)):
        for work in proposal.work[start:stop]:
            if not isinstance(work.sequence, str) or work.sequence not in sequences:
                ids = "the id of a request that was received and has not been released: sequence.id"
                raise Wrong(f"a Proposal with {shown(work)}, whose sequence is unknown", f"give {ids}", "conservation")
            if not is_whole(work.start) or not is_whole(work.stop) or work.start >= work.stop:
                rule = "tokens [start, stop) are whole numbers, start below stop: leave empty spans out"
                raise Wrong(f"a Proposal with {shown(work)}", rule)
            sequence = sequences[work.sequence]
            if sequence.graph is None:
                texts.setdefault(work.sequence, []).append(work)
            else:
                _check_node(work, sequence)
                known = planned.nodes.get(work.sequence, {})
                if (work.sequence, work.start) in nodes or work.start in known:
                    found = f"a Proposal with {shown(work)}, which was planned before"
                    raise Wrong(found, "compute each node once", "order")
                nodes[work.sequence, work.start] = work, number
    for (name, node), (work, number) in nodes.items():
        known = planned.nodes.get(name, {})
        for source in unfolded(sequences[name]).sources[node]:
            before = nodes.get((name, source))
            if known.get(source) not in (DONE, worker) and (before is None or before[1] >= number):
                found = f"a Proposal with {shown(work)}, which reads node {source}"
                raise Wrong(found, "that has not been computed, nor planned before it", "order")
    total = sum(work.num_tokens for work in proposal.work)
    if budget is not None and total > budget:
        raise Wrong(f"a Proposal of {total} tokens of work", f"its token_budget is {budget}", "budget")
    for name, works in texts.items():
        expected = [span for span in memory.missing(sequences[name]) if span.stop > span.start]
        if requests.in_flight.workers_of(name):  # with a depth above one it goes on from what it has planned itself
            stop = planned.stops[name]
            expected = [Span(stop, max(stop + 1, len(sequences[name].request.prompt)))]
        _check_tokens(works, sequences[name], expected)


def _check_tokens(works: list[Work], sequence: Sequence, expected: list[Span]) -> None:
    spans = sorted((work.start, work.stop) for work in works)
    found = f"a Proposal with the tokens {' and '.join(f'[{a}, {b})' for a, b in spans)} of {sequence.id!r}"
    if any(work.cell != TRANSFORMER for work in works):
        raise Wrong(f"{found} as the cell {works[0].cell!r}", "a text has no cells: leave the cell out")
    left = list(expected)
    for start, stop in spans:
        if not left or start != left[0].start or stop > left[0].stop:
            missing = " and ".join(f"[{a}, {b})" for a, b in expected) or "none"
            allowed = f"memory misses {missing} of its {len(sequence)}: give these, or the first of them, once"
            raise Wrong(found, allowed, "counting")
        left[0] = Span(stop, left[0].stop)
        if stop == left[0].stop:
            del left[0]


def _check_node(work: Work, sequence: Sequence) -> None:
    node, graph = work.start, unfolded(sequence)
    if work.stop != node + 1 or node >= len(graph) or graph.nodes[node].cell != work.cell:
        allowed = f"a node is Work(sequence.id, node, node + 1, its cell), of the {len(graph)} nodes of its graph"
        raise Wrong(f"a Proposal with {shown(work)}", allowed)
