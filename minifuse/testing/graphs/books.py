"""Tracks the nodes and slots of a run of cell graphs, only from its plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from minifuse.contracts.form import check_cover
from minifuse.core.cell_graph import CellGraph
from minifuse.core.errors import LawBroken
from minifuse.core.places import State
from minifuse.core.plan import Plan, Proposal, Span, Work
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import Sequence
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import unfolded
from minifuse.serve.assembly import Choices
from minifuse.testing.subject import Books

NodeOf = tuple[str, int]  # a request's node
WHOLE_GRAPHS = ("graph_merged", "graph_padded")  # policies whose plans compute whole graphs
BY_SUBGRAPH = ("cellular",)  # policies that pin subgraphs to workers


class GraphBooks(Books):
    """Tracks which plans are submitted, begun and completed, and what each slot holds.

    A worker runs its plans in order; plans of different workers run in any order. So a plan may read three kinds of
    states: those computed before it was submitted, those of earlier plans of its worker, and those of its own earlier
    waves. While a plan that writes a slot is in flight, plans of other workers must not touch that slot.
    """

    def __init__(self, choices: Choices, capacity: int, producing: Collection[str]) -> None:
        super().__init__()
        self.whole = choices.row.batching in WHOLE_GRAPHS
        self.by_subgraph = choices.row.batching in BY_SUBGRAPH
        self.producing = producing  # the types of cell that produce a token
        options = vars(choices.options["batching"])
        self.max_batch: float = options.get("max_batch", math.inf)
        pairs = (options.get("max_batches") or "").split(",")
        self.max_batches = {name: int(size) for name, _, size in (pair.partition("=") for pair in pairs if pair)}
        self.batch_sizes = [int(size) for size in (options.get("batch_sizes") or "").split(",") if size]
        self.min_batch: int = options.get("min_batch", 1)
        self.capacity = capacity
        self.graphs: dict[str, CellGraph] = {}  # of every sequence that was ever received
        self.live: set[str] = set()  # received and not yet finished
        self.shadows: dict[str, Sequence] = {}  # each sequence as completed plans leave it
        self.planned: dict[NodeOf, int] = {}  # the worker of each node that was in a plan
        self.done: set[NodeOf] = set()
        self.num_done: dict[str, int] = {}
        self.in_flight: dict[int, Plan] = {}  # by step: plans submitted and not completed
        self.contents: dict[int, NodeOf] = {}  # what plans that have begun wrote, or are writing, to each slot
        self.has_read: set[tuple[str, int, int]] = set()  # (request, node, reader): the reader's plan has begun

    def receive(self, sequence: Sequence) -> None:
        self.live.add(sequence.id)
        self.graphs[sequence.id] = unfolded(sequence)
        self.shadows[sequence.id] = Sequence(sequence.request)
        self.num_done[sequence.id] = 0

    # --- proposed work must be right whatever the plans of other workers do meanwhile

    def propose(self, worker: int, proposal: Proposal) -> None:
        work = proposal.work
        if not work:
            if not proposal.reasons:
                self._check_idle(worker)
            return
        newcomers = {item.sequence for item in work} - {name for name, _ in self.planned}
        if sorted(sequence.id for sequence in proposal.admit) != sorted(newcomers):
            raise LawBroken("counting", f"worker {worker} begins with {newcomers} and admits {proposal.admit}")
        check_cover(f"worker {worker} has the waves ", proposal.waves, len(work))
        if self.by_subgraph:
            self._check_subgraphs(worker, work)
        for start, stop in proposal.waves or (Span(0, len(work)),):
            self._check_wave(worker, work[start:stop])
        if self.whole:
            self._check_whole(worker, work)

    def _check_wave(self, worker: int, work: tuple[Work, ...]) -> None:
        """Check that a wave has one type of cell, few enough nodes, and available inputs."""
        cells = {item.cell for item in work}
        if len(cells) > 1:
            raise LawBroken("layout", f"worker {worker} got {cells} as one batch")
        most = self.max_batches.get(work[0].cell, self.max_batch) if work else 0
        if not self.whole and len(work) > most:
            raise LawBroken("budget", f"worker {worker} got a batch of {len(work)} {work[0].cell}: {work}")
        sizes = [size for size in self.batch_sizes if self.min_batch <= size <= most]
        if sizes and len(work) >= min(sizes) and len(work) not in sizes:
            raise LawBroken("budget", f"worker {worker} got a batch of {len(work)} {work[0].cell}, not of {sizes}")
        for name, node, stop, cell in work:
            graph = self.graphs[name]
            if stop != node + 1 or cell != graph.nodes[node].cell:
                raise LawBroken("layout", f"worker {worker} got {name}'s node {node} as {cell}, up to {stop}")
            if (name, node) in self.planned:
                raise LawBroken("conservation", f"worker {worker} got {name}'s node {node} a second time")
            for source in graph.topology.sources[node]:
                at = self.planned.get((name, source))
                if at is None or (at != worker and (name, source) not in self.done):
                    raise LawBroken("order", f"worker {worker} got {name}'s node {node} before node {source}")
        for item in work:
            self.planned[item.sequence, item.start] = worker

    def _check_subgraphs(self, worker: int, work: tuple[Work, ...]) -> None:
        """Check that a subgraph is on one worker, and its outside inputs are computed."""
        mine = {(item.sequence, item.start) for item in work}
        for name in {item.sequence for item in work}:
            for nodes in self.graphs[name].topology.subgraphs:
                if not any((name, node) in mine for node in nodes):
                    continue
                if self._workers_at(name, nodes) - {worker}:
                    raise LawBroken("pinned", f"worker {worker} got some of {nodes} of {name}: another runs it")
                if missing := [s for s in self._outside(name, nodes) if (name, s) not in self.done]:
                    raise LawBroken("order", f"worker {worker} got some of {nodes} of {name} before {missing}")

    def _outside(self, name: str, nodes: Collection[int]) -> set[int]:
        return {source for node in nodes for source in self.graphs[name].topology.sources[node]}.difference(nodes)

    def _workers_at(self, name: str, nodes: Collection[int]) -> set[int]:
        """Return the workers that have one of these nodes in a plan in flight."""
        flying = {(name, node) for node in nodes} - self.done
        return {self.planned[key] for key in flying if key in self.planned}

    def _check_whole(self, worker: int, work: tuple[Work, ...]) -> None:
        """Check that a plan of graph batching has all nodes of its requests."""
        counts = Counter(item.sequence for item in work)
        if len(counts) > self.max_batch:
            raise LawBroken("budget", f"worker {worker} got {len(counts)} graphs, of {self.max_batch}")
        for name, count in counts.items():
            if count != len(self.graphs[name]):
                raise LawBroken("counting", f"worker {worker} got {count} nodes of {name}, which has more")

    def submit(self, plan: Plan) -> None:
        """Check that plans of other workers touch none of this plan's slots."""
        reads, writes = _touched(plan)
        for other in self.in_flight.values():
            if other.worker != plan.worker:
                read, written = _touched(other)
                if shared := (writes & (read | written)) | (reads & written):
                    raise LawBroken("conservation", f"steps {other.step} and {plan.step} both touch the slots {shared}")
        self.in_flight[plan.step] = plan

    # --- a plan begins

    def begin(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """Check that a plan reads the right slots and overwrites only what no node needs."""
        for start, stop in plan.waves:
            now = list(zip(plan.work[start:stop], _states(plan)[start:stop], strict=True))
            for (name, node, _, _), place in now:
                reads = self.graphs[name].topology.reads[node]
                held = tuple(self.contents.get(slot) for slot in place.reads)
                if held != tuple((name, source) for source in reads):
                    raise LawBroken("ghost", f"step {plan.step}: node {node} of {name} reads {reads}, and got {held}")
                for source in reads:
                    self.has_read.add((name, source, node))
            slots = [place.slot for _, place in now]
            if not all(0 <= slot < self.capacity for slot in slots):
                raise LawBroken("budget", f"step {plan.step} writes the slots {slots} of {self.capacity}")
            if len(set(slots)) < len(slots):
                raise LawBroken("conservation", f"step {plan.step} writes {len(slots)} states to the slots {slots}")
            for (name, node, _, _), place in now:
                self._overwrite(place.slot, plan)
                self.contents[place.slot] = name, node

    def _overwrite(self, slot: int, plan: Plan) -> None:
        name, node = self.contents.get(slot, ("", 0))
        if name in self.live:
            missing = [n for n in self.graphs[name].topology.readers[node] if (name, node, n) not in self.has_read]
            if missing:
                raise LawBroken("conservation", f"step {plan.step} writes over {name}'s node {node}: {missing} need it")

    # --- a plan has completed

    def ran(self, plan: Plan, ran: Ran) -> None:
        """Check that each node of a producing type has produced a token."""
        produced = {name: list(tokens) for name, tokens in ran.tokens.items()}
        for name, node, _, cell in plan.work:
            if cell in self.producing:
                if not produced.get(name):
                    raise LawBroken("counting", f"step {plan.step}: node {node} of {name} produces no token")
                self.tokens[name, node] = produced[name].pop(0)
        if any(produced.values()):
            raise LawBroken("counting", f"step {plan.step} produces {produced}, which no node does")

    def complete(self, report: StepReport, held: Collection[str]) -> None:
        """Check that each request ends in the step of its last node or last token."""
        plan = report.plan
        del self.in_flight[plan.step]
        discarded = sum(work.sequence not in self.live for work in plan.work)
        for work in plan.work:
            self.done.add((work.sequence, work.start))
            self.num_done[work.sequence] += 1
        for name, tokens in report.tokens.items():
            self.shadows[name].tokens += tokens
        if not discarded <= report.discarded <= discarded + len(plan.work):
            raise LawBroken("counting", f"step {plan.step} computed {discarded} nodes in vain, not {report.discarded}")
        leaving = {name for name in plan.sequences if name in self.live and self._ends(name)}
        if leaving != report.finished.keys():
            raise LawBroken("progress", f"{leaving} are done with step {plan.step}, and {set(report.finished)} leave")
        self._check_usage(report)
        self.live -= leaving

    def abort(self, name: str, held: Collection[str]) -> None:
        self.live.discard(name)

    def _ends(self, name: str) -> bool:
        return self.num_done[name] == len(self.graphs[name]) or self.shadows[name].why_finished() is not None

    def _check_usage(self, report: StepReport) -> None:
        """Check that memory counts at least the states needed, and at most those written."""
        usage = report.usage
        needed = {slot for plan in self.in_flight.values() for slot in _touched(plan)[1]}
        for slot, (name, node) in self.contents.items():
            if name in self.live and (name, node) in self.done:
                needed |= {
                    slot for reader in self.graphs[name].topology.readers[node] if (name, reader) not in self.done
                }
        if not len(needed) <= usage.used <= usage.reserved <= usage.capacity == self.capacity:
            raise LawBroken("conservation", f"{len(needed)} states are needed, and memory has {usage}")
        held = set(self.contents) | needed
        if usage.used > len(held):
            raise LawBroken("conservation", f"{len(held)} slots have been written, and memory has {usage}")

    def _check_idle(self, worker: int) -> None:
        """Check that an idle worker gets work that it could run, or a reason."""
        if any(plan.worker == worker for plan in self.in_flight.values()):
            return
        if waiting := self.live - {name for name, _ in self.planned}:
            raise LawBroken("progress", f"worker {worker} idles while {waiting} wait, without a reason")
        if not self.by_subgraph:
            return
        for name in self.live:
            for nodes in self.graphs[name].topology.subgraphs:
                pinned = self._workers_at(name, nodes)
                ready = all((name, source) in self.done for source in self._outside(name, nodes))
                if ready and not pinned and any((name, node) not in self.planned for node in nodes):
                    raise LawBroken("progress", f"worker {worker} idles, and {nodes} of {name} could run on it")


def _states(plan: Plan) -> tuple[State, ...]:
    for place in plan.places:
        if not isinstance(place, State):
            raise LawBroken("layout", f"step {plan.step} has {place} where slots of states are read")
    return plan.places  # type: ignore[return-value]


def _touched(plan: Plan) -> tuple[set[int], set[int]]:
    """Return the slots that a plan reads, and the slots that it writes, padding included."""
    states = _states(plan)
    written = {state.slot for state in states}
    if isinstance(plan.shape, StateRows):
        written |= set(range(plan.shape.offset, plan.shape.offset + plan.shape.rows))
    return {slot for state in states for slot in state.reads}, written
