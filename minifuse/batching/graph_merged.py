"""Graph batching by merging: the graphs of a set of requests become one (BatchMaker, 2.2.3 and 2.7.5: Fold, DyNet)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.batching.newcomers import fill
from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.plan import Plan, Proposal, Reason, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.core.unfolded import unfolded
from minifuse.stages import Batching

__all__ = ["GraphMerged"]


class GraphMerged(Batching):
    """The graphs of a set of requests are merged: nodes of one type and depth are a batch, depth after depth.

    A node's type is that of its cell, as in TensorFlow Fold, or graphs are of single operators, as in DyNet. All
    requests of a set return when its merged graph has been computed; later arrivals are in the next set, which is
    merged while this one runs, once it is full, unless `overlap` is off.
    """

    name: ClassVar[str] = "graph_merged"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    overtaken_at_most = 0

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(64, "graphs of one set, at most", minimum=1, batch_size=True)
        per: str = option("cell", "merged by cells (Fold) or by single operators (DyNet)", choices=("cell", "operator"))
        overlap: bool = option(True, "merge the next set while this one runs")
        workers: int = option(1, "workers, each of which runs one merged graph at a time", minimum=1, maximum=64)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting = Ranked()
        self.workers: int = self.options.workers
        self.depth = 2 if self.options.overlap else 1
        self.granularity: str = self.options.per
        self.num_running = [0] * self.workers  # sets of each worker

    def receive(self, sequence: Sequence) -> None:
        self.waiting.join(sequence, self.options.rank(sequence.request))

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if not self.waiting:
            return Proposal()
        running = self.num_running[worker]
        if running and len(self.waiting) < self.options.max_batch:  # it could start no earlier, and may still grow
            text = f"not merged: a set runs, and the next has {len(self.waiting)} of {self.options.max_batch} graphs"
            return Proposal(reasons=(Reason("batch-running", next(iter(self.waiting)).id, text),))
        room = memory.room()
        batch, reasons = fill(self.waiting, room, self.options.max_batch)
        if not batch or (running and len(batch) < self.options.max_batch):
            return Proposal(reasons=tuple(reasons))
        self.num_running[worker] += 1
        for sequence in batch:
            self.waiting.remove(sequence.id)
        work, waves = _merged(batch)
        return Proposal(tuple(work), tuple(batch), tuple(reasons), waves=tuple(waves), room=room)

    def commit(self, plan: Plan, now: float) -> None:
        """A worker's set has run; all that were in it leave."""
        self.num_running[plan.worker] -= 1


def _merged(batch: list[Sequence]) -> tuple[list[Work], list[Span]]:
    """One wave for each depth and type, the shallowest first."""
    merged: dict[tuple[int, str], list[Work]] = {}
    for sequence in batch:
        name = sequence.id
        for level, nodes in unfolded(sequence).topology.levels.items():
            cell = level[1]
            merged.setdefault(level, []).extend([Work(name, node, node + 1, cell) for node in nodes])
    work: list[Work] = []
    waves: list[Span] = []
    for level in sorted(merged):
        waves.append(Span(len(work), len(work) + len(merged[level])))
        work += merged[level]
    return work, waves
