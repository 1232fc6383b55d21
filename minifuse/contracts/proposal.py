"""Checks what a batching policy proposes (docs/stages.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from minifuse.contracts.fault import Wrong
from minifuse.contracts.form import check_cover, check_form
from minifuse.contracts.lawful import check_sequences
from minifuse.core.places import State
from minifuse.core.plan import TRANSFORMER, Place, Proposal, Span, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.requests import Requests
from minifuse.core.stages import Memory
from minifuse.core.unfolded import unfolded

DONE, IN_THIS_WAVE = -1, -2  # stand in the place of the worker on which a node is planned


@dataclass(slots=True)
class Known:
    """What is known of an admitted sequence from its plans."""

    length: int  # in tokens, at admission or at the end of the last plan
    stop: int = 0  # where its last work ends, in tokens
    workers: dict[int, int] = field(default_factory=dict)  # planned node -> its worker, or DONE if it has run
    slots: dict[int, int] = field(default_factory=dict)  # node -> its slot, from `check_placement`
    place: Place | None = None  # its place in its last plan; None if anything was moved after that plan

    def plan(self, work: Work, place: Place, worker: int) -> None:
        """Record work of the next plan on this worker, and the work's place."""
        self.stop = max(self.stop, work.stop)
        if isinstance(place, State):
            self.workers[work.start] = worker
        else:
            self.place = place

    def complete(self, work: Work, length: int) -> None:
        """Record that a plan with this work has run; the sequence now has `length` tokens."""
        self.length = length
        if work.start in self.workers:
            self.workers[work.start] = DONE


def check_proposal(
    proposal: Any, policy: Any, memory: Memory, requests: Requests, known: Mapping[str, Known], worker: int
) -> None:
    """Raise `Wrong` unless a proposal is well-formed and computes only what memory lacks."""
    check_form(proposal, Proposal)
    for name, one in known.items():
        if name in requests.sequences and len(requests.sequences[name]) != one.length:
            raise Wrong(f"and had changed {name!r}", "sequences are read, and the engine alone writes them", "pure")
    for reason in proposal.reasons:
        if not all(reason) or reason.sequence not in requests.sequences:
            allowed = "it has a code, the id of a request that was received and has not been released, and a text"
            raise Wrong(repr(reason), allowed, "reasons")
    wake_at = proposal.wake_at
    if wake_at is not None and not requests.now < wake_at < math.inf:
        allowed = f"give None, or a finite time later than now, which is {requests.now:g} s"
        raise Wrong(f"a Proposal whose wake_at is {wake_at}", allowed)
    if proposal.phase not in (Phase.RUNNING, Phase.PREPROCESSING):
        raise Wrong(f"a Proposal whose phase is {proposal.phase}", "give Phase.RUNNING or Phase.PREPROCESSING")
    if not proposal.work:
        if proposal.admit or proposal.evict or proposal.waves:
            raise Wrong("a Proposal without work that admits, evicts or has waves", "these count with work only")
        return
    if wake_at is not None:
        raise Wrong(f"a Proposal whose wake_at is {wake_at} and which has work", "only one that waits is woken")
    if proposal.evict and policy.workers > 1:
        raise Wrong(f"a Proposal that evicts and {policy.workers} workers", "a policy that evicts has one worker")
    check_cover("a Proposal whose waves are ", proposal.waves, len(proposal.work))
    _check_work(proposal, requests)
    if requests.sequences[proposal.work[0].sequence].graph is None:  # a model has only texts, or only cell graphs
        _check_texts(proposal, memory, requests, known)
    else:
        _check_nodes(proposal, requests, known, worker)
    total = num_counted(policy, proposal.work, ends_of_texts(proposal.work, requests.sequences))
    if policy.token_budget is not None and total > policy.token_budget:
        raise Wrong(f"a Proposal of {total} tokens of work", f"its token_budget is {policy.token_budget}", "budget")
    check_sequences(worker, proposal, requests)
    if proposal.evict and not memory.evicts:
        raise Wrong("a Proposal that evicts", "only a memory with evicts = True is evicted from", "conservation")


def ends_of_texts(work: Iterable[Work], sequences: Mapping[str, Sequence]) -> set[str]:
    """Return the sequences whose last token is in this work."""
    return {item.sequence for item in work if item.stop == len(sequences[item.sequence].tokens)}


def num_counted(policy: Any, work: Collection[Work], ends: Collection[str]) -> int:
    """Count the tokens of work that the policy's `token_budget` bounds.

    With `budget_of_prompts`, the next token of a sequence that lacks no other does not count.

    Args:
        ends: the sequences whose last token is in this work.
    """
    total = sum([item.num_tokens for item in work])
    if not policy.budget_of_prompts:
        return total
    pieces = Counter([item.sequence for item in work])
    return total - sum([item.num_tokens == pieces[item.sequence] == 1 and item.sequence in ends for item in work])


def _check_work(proposal: Proposal, requests: Requests) -> None:
    for work in proposal.work:
        if work.sequence not in requests.sequences:
            allowed = "give the id of a request that was received and has not been released: sequence.id"
            raise Wrong(f"a Proposal with {work}, whose sequence is unknown", allowed, "conservation")
        if not 0 <= work.start < work.stop:
            allowed = "tokens are [start, stop) from 0 on, start below stop: leave empty spans out"
            raise Wrong(f"a Proposal with {work}", allowed)


def _check_texts(proposal: Proposal, memory: Memory, requests: Requests, known: Mapping[str, Known]) -> None:
    """Raise `Wrong` unless a text's work is its first missing tokens, each token once."""
    spans: dict[str, list[Span]] = {}
    for work in proposal.work:
        if work.cell != TRANSFORMER:
            raise Wrong(f"a Proposal with {work}", "a text has no cells: leave the cell out")
        spans.setdefault(work.sequence, []).append(Span(work.start, work.stop))
    for name, given in spans.items():
        sequence = requests.sequences[name]
        missing = memory.missing(sequence)
        if requests.in_flight.using(name):  # a depth above one: the policy goes on from its last plan
            stop = known[name].stop
            missing = (Span(stop, max(stop + 1, len(sequence.request.prompt))),)
        left = _tokens(missing)
        if any(token != next(left, None) for token in _tokens(sorted(given))):
            found = f"a Proposal with the tokens {_listed(sorted(given))} of {name!r}"
            allowed = f"memory misses {_listed(missing)} of its {len(sequence)}: give these, or the first of them, once"
            raise Wrong(found, allowed, "counting")


def _tokens(spans: Iterable[Span]) -> Iterator[int]:
    return chain.from_iterable(range(start, stop) for start, stop in spans)


def _listed(spans: Iterable[Span]) -> str:
    return " and ".join(f"[{start}, {stop})" for start, stop in spans)


def _check_nodes(proposal: Proposal, requests: Requests, known: Mapping[str, Known], worker: int) -> None:
    """Raise `Wrong` unless each node is computed once, and after the nodes that it reads."""
    planned = {name: {**known[name].workers} if name in known else {} for name, *_ in proposal.work}
    for wave in proposal.waves or (Span(0, len(proposal.work)),):
        nodes = proposal.work[slice(*wave)]
        for work in nodes:
            (name, node, stop, cell), graph = work, unfolded(requests.sequences[work.sequence])
            if stop != node + 1 or node >= len(graph) or graph.nodes[node].cell != cell:
                allowed = (
                    f"a node is Work(sequence.id, node, node + 1, its cell), of the {len(graph)} nodes of its graph"
                )
                raise Wrong(f"a Proposal with {work}", allowed)
            if node in planned[name]:
                raise Wrong(f"a Proposal with {work}, which was planned before", "compute each node once", "order")
            planned[name][node] = IN_THIS_WAVE
            for source in graph.topology.sources[node]:
                if planned[name].get(source) not in (DONE, worker):
                    found = f"a Proposal with {work}, which reads node {source}"
                    raise Wrong(found, "that has not been computed, nor planned before it", "order")
        for work in nodes:
            planned[work.sequence][work.start] = worker
