"""Graph batching by merging: graphs of several requests become one (BatchMaker, 2.2.3, 2.7.5)."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Plan, Proposal, Reason, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.core.unfolded import unfolded
from minifuse.io.parsing import number


def set_full(policy: QueuePolicy, sequence: Sequence, joining: int, now: float) -> Reason | None:
    """Return why a graph does not join a set of `joining` graphs, or None."""
    if joining < policy.options.max_batch:
        return None
    return Reason("batch-full", sequence.id, f"not batched: the batch has {number(joining, 'request')}")


def settle_waves(fill: Fill, waves: Collection[list[Work]]) -> Proposal:
    """Return the proposal for a set of graphs, whose work is computed in these waves."""
    fill.work = [work for wave in waves for work in wave]
    return fill.settle(waves=tuple([Span(*ends) for ends in pairwise(accumulate(map(len, waves), initial=0))]))


class GraphMerged(QueuePolicy):
    """Merges the graphs of several requests: nodes of equal type and depth form a batch.

    Nodes are cells, as in TensorFlow Fold, or single operators, as in DyNet. All requests of a set return when its
    merged graph has been computed; later arrivals join the next set. With `overlap`, the next set is merged as soon as
    it is full, even while this one runs.
    """

    name = "graph_merged"
    serves = frozenset({"cells"})
    one_plan = False
    admission = set_full

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(64, "graphs of one set, at most", minimum=1, batch_size=True)
        per: str = option("cell", "merged by cells (Fold) or by single operators (DyNet)", choices=("cell", "operator"))
        overlap: bool = option(True, "merge the next set while this one runs")
        workers: int = option(1, "workers, each of which runs one merged graph at a time", minimum=1, maximum=64)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.workers = self.options.workers
        self.depth = 2 if self.options.overlap else 1
        self.granularity = self.options.per
        self.num_running = [0] * self.workers  # worker -> sets in flight

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        running, most = self.num_running[worker], self.options.max_batch
        if running and 0 < len(self.waiting) < most:  # the next set could not start yet, and may still grow
            text = f"not merged: a set runs, and the next has {len(self.waiting)} of {most} graphs"
            return Proposal(reasons=(Reason("batch-running", next(iter(self.waiting)).id, text),))
        fill = Fill(self, now, memory, [])
        fill.admit()
        if running and len(fill.joining) < most:
            return Proposal(reasons=tuple(fill.reasons))
        self.num_running[worker] += bool(fill.joining)
        return settle_waves(fill, _merged(fill.joining))

    def commit(self, plan: Plan, now: float) -> None:
        """Record that a worker's set has completed; all its requests leave."""
        self.num_running[plan.worker] -= 1


def _merged(batch: list[Sequence]) -> list[list[Work]]:
    """Return one wave for each depth and type, the shallowest first."""
    merged: defaultdict[tuple[int, str], list[Work]] = defaultdict(list)
    for sequence in batch:
        name = sequence.id
        for (depth, cell), nodes in unfolded(sequence).topology.levels.items():
            merged[depth, cell] += [Work(name, node, node + 1, cell) for node in nodes]
    return [merged[level] for level in sorted(merged)]
