"""What goes wrong in cellular batching."""

from __future__ import annotations

from typing import Any

from conformance.defects.harness import Patch, graph_defect, instead_of, leak_arrivals

from minifuse.batching.cellular import CellType, Cellular
from minifuse.batching.subgraphs import RequestProcessor, Subgraph
from minifuse.core.plan import Proposal
from minifuse.core.request import Sequence


@graph_defect("cellular", "order")
@instead_of(Subgraph, "__init__")
def ready_too_early(init: Any, self: Subgraph, *arguments: Any) -> None:
    """A node is ready as soon as the first of those it reads has been submitted."""
    init(self, *arguments)
    self.missing = {node: min(count, 1) for node, count in self.missing.items()}


@graph_defect("cellular", "order")
@instead_of(RequestProcessor, "computed")
def passed_on_too_early(computed: Any, self: RequestProcessor, sequence: Sequence, nodes: list[int]) -> None:
    """A subgraph is scheduled when some of what it reads outside has been computed."""
    for subgraph in self.held.get(sequence.id, ()):
        if not subgraph.outside.isdisjoint(nodes):
            subgraph.outside.clear()
    computed(self, sequence, nodes)


@graph_defect("cellular", "order")
@instead_of(Cellular, "submit")
def passed_on_when_submitted(submit: Any, self: Cellular, batch: Any, worker: int) -> None:
    """What was submitted counts as computed, whichever worker computes it."""
    submit(self, batch, worker)
    for subgraph, nodes in batch.nodes.items():
        self.processor.computed(subgraph.sequence, nodes)


@graph_defect("cellular", "pinned", batching__workers=2)
@instead_of(CellType, "completed")
def unpinned_too_early(completed: Any, self: CellType, subgraph: Subgraph) -> None:
    """A subgraph is unpinned with the first of its tasks that completes, however many still run."""
    subgraph.num_running = 1
    completed(self, subgraph)


@graph_defect("cellular", "pinned")
@instead_of(CellType, "submit")
def never_pinned(submit: Any, self: CellType, subgraph: Subgraph, nodes: list[int], worker: int) -> None:
    submit(self, subgraph, nodes, worker)
    self._num_ready[worker] -= len(subgraph.ready)
    self._num_ready[None] += len(subgraph.ready)
    subgraph.pinned = None


@graph_defect("cellular", "progress", batching__workers=2)
@instead_of(CellType, "completed")
def never_unpinned(completed: Any, self: CellType, subgraph: Subgraph) -> None:
    """A subgraph stays with its worker for ever, which may be busy while others idle."""
    subgraph.num_running += 1
    completed(self, subgraph)


@graph_defect("cellular", "progress")
@instead_of(RequestProcessor, "receive")
def subgraph_dropped(receive: Any, self: RequestProcessor, sequence: Sequence) -> None:
    """Of several that depend on nothing, the last is forgotten."""
    free: list[Subgraph] = []
    schedule, self.schedule = self.schedule, free.append
    receive(self, sequence)
    self.schedule = schedule
    for subgraph in free[: max(1, len(free) - 1)]:
        schedule(subgraph)


@graph_defect("cellular", "budget")
def batch_too_large(patch: Patch) -> None:
    init = CellType.__init__
    patch.setattr(CellType, "__init__", lambda self, most, *sizes: init(self, most + 1, *sizes))


@graph_defect("cellular", "conservation")
@instead_of(Subgraph, "submit")
def computed_twice(submit: Any, self: Subgraph, node: int) -> None:
    """A node is left among the ready ones when it is submitted."""
    submit(self, node)
    if self.outside or len(self.missing) == 1:
        self.ready.append(node)


@graph_defect("cellular", "layout")
def types_mixed(patch: Patch) -> None:
    """One queue for all types."""
    enqueue = Cellular.enqueue

    def careless(self: Cellular, subgraph: Subgraph) -> None:
        cell, subgraph.cell = subgraph.cell, "any"
        enqueue(self, subgraph)
        subgraph.cell = cell
        self.types[cell] = self.types["any"]

    patch.setattr(Cellular, "enqueue", careless)
    patch.setattr(Cellular, "release", lambda self, sequence: self.admitted(sequence))


@graph_defect("cellular", "progress")
@instead_of(Cellular, "propose")
def worker_left_idle(propose: Any, self: Cellular, worker: int, now: float, memory: Any) -> Proposal:
    return Proposal() if worker else propose(self, worker, now, memory)


@graph_defect("cellular", "pure", "progress", check="reproducible")
@instead_of(CellType, "add")
def queue_in_order_of_hash(add: Any, self: CellType, subgraph: Subgraph, started: bool) -> None:
    add(self, subgraph, started)
    self.newcomers = dict.fromkeys(sorted(self.newcomers, key=lambda other: hash((other.sequence.id, "salt"))))


@graph_defect("cellular", "same in simulation", check="same_in_simulation")
def decides_by_chance(patch: Patch) -> None:
    counter = iter(range(10**9))
    form = Cellular.form_batched_task

    def fickle(self: Cellular, ct: CellType, worker: int, room: Any, *size: int) -> Any:
        most, ct.max_batch = ct.max_batch, 1 if next(counter) % 3 == 0 else ct.max_batch
        try:
            return form(self, ct, worker, room, *size)
        finally:
            ct.max_batch = most

    patch.setattr(Cellular, "form_batched_task", fickle)


@graph_defect("cellular", "budget")
@instead_of(CellType, "fitting")
def any_size_is_supported(fitting: Any, self: CellType, count: int) -> int:
    return min(count, self.max_batch)


@graph_defect("cellular", "pure")
@instead_of(Cellular, "propose")
def propose_touches_memory(propose: Any, self: Cellular, worker: int, now: float, memory: Any) -> Proposal:
    proposal = propose(self, worker, now, memory)
    memory.num_reserved += len(proposal.admit)  # "it will be needed anyway"
    return proposal


@graph_defect("cellular", "blind", check="blind")
def waits_for_a_request_it_cannot_know(patch: Patch) -> None:
    """A policy that has the list of arrivals, and admits one request at a time before the next one."""
    leak_arrivals(patch)
    form = Cellular.form_batched_task

    def saving(self: Cellular, ct: CellType, worker: int, room: Any, *size: int) -> Any:
        task = form(self, ct, worker, room, *size)
        if any(arrival > 0.1 for arrival in self.future):
            task.nodes = dict([*task.nodes.items()][:1])  # one subgraph: all the rest must wait
            named = {subgraph.sequence for subgraph in task.nodes}
            task.admit[:] = [sequence for sequence in task.admit if sequence in named]
        return task

    patch.setattr(Cellular, "form_batched_task", saving)
