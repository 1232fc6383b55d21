"""Graph batching by padding: chains are padded to equal length (BatchMaker, 2.2.3, 2.7.1)."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any

from minifuse.batching.graph_merged import set_full, settle_waves
from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.batching.queue import Ranked
from minifuse.core.cell_graph import Topology
from minifuse.core.errors import RequestRefused
from minifuse.core.plan import Proposal, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.core.unfolded import unfolded

Bucket = tuple[tuple[str, ...], int]  # types of a chain's segments, and the bucket's number i (see `GraphPadded`)


@lru_cache(1024)
def segments(topology: Topology) -> tuple[tuple[int, ...], ...] | None:
    """Return a chain's nodes in order, cut where the type changes, or None.

    >>> from minifuse.core.cell_graph import Output
    >>> segments(Topology(("encoder", "encoder", "decoder"), ((None,), (Output(0),), (Output(1),))))
    ((0, 1), (2,))
    """
    if any(topology.sources[node] != (before,) for before, node in pairwise(topology.order)):
        return None
    return tuple(tuple(nodes) for _, nodes in groupby(topology.order, key=topology.cells.__getitem__))


class GraphPadded(QueuePolicy):
    """Serves buckets of requests of similar length in turn; pads a batch to one graph.

    Buckets take turns, without a timeout: whenever a worker is idle, the next bucket that has requests starts a batch
    of them (ours: or the bucket that has most of them). All requests of a batch return when it ends; later arrivals
    wait. With buckets of width w, bucket i takes chains whose first segment, the input, has a length in (w i, w i + w].
    The length of the answer is not known.

    >>> # width 10: lengths 3 and 8 are in bucket 0, padded to 10, and 21 is in bucket 2, padded to 30
    """

    name = "graph_padded"
    serves = frozenset({"cells"})
    one_plan = False
    admission = set_full
    remembers = True  # the bucket that had the last turn

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(64, "requests of one batch, at most", minimum=1, batch_size=True)
        bucket_width: int = option(10, "lengths that share a bucket", minimum=1, maximum=4096)
        pad: str = option(
            "bucket",
            "inputs are padded to their bucket's longest, as a graph made beforehand is, or to the batch's longest",
            choices=("bucket", "longest"),
        )
        turn: str = option(
            "round-robin",
            "the bucket that starts the next batch: the next one that has requests, or the one that has most",
            choices=("round-robin", "fullest"),
        )
        workers: int = option(1, "workers, each of which runs one batch at a time", minimum=1, maximum=64)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.workers = self.options.workers
        self.buckets: dict[Bucket, Ranked] = {}  # each in the order of arrival
        self.last: Bucket = (), 0  # the bucket that had the last turn

    def rank(self, sequence: Sequence) -> int:
        return 0  # first come, first served

    def receive(self, sequence: Sequence) -> None:
        bucket = self._bucket(sequence)
        super().receive(sequence)
        self.buckets.setdefault(bucket, Ranked()).add(self.waiting.remove(sequence.id))

    def _bucket(self, sequence: Sequence) -> Bucket:
        topology = unfolded(sequence).topology
        chain = segments(topology)
        if chain is None:
            raise RequestRefused(
                f"Request {sequence.id!r} unfolds into a graph that is no chain, and padding makes chains equally long "
                "and nothing else: use graph-merged or cellular."
            )
        types = tuple(topology.cells[nodes[0]] for nodes in chain)
        return types, (len(chain[0]) - 1) // self.options.bucket_width

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        for bucket in self.buckets.values():
            bucket.discard(sequence.id)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        """Propose a batch of the bucket whose turn it is."""
        order = sorted([bucket for bucket, waiting in self.buckets.items() if waiting])
        if not order:
            return Proposal()
        if self.options.turn == "fullest":
            bucket = max(order, key=lambda one: len(self.buckets[one]))
        else:
            bucket = next((one for one in order if one > self.last), order[0])
        self.ready = self.buckets[bucket]
        fill = Fill(self, now, memory, [])
        fill.admit()
        if fill.joining:
            self.last = bucket
        return settle_waves(fill, self._padded(fill.joining, bucket))

    def _padded(self, batch: list[Sequence], bucket: Bucket) -> list[list[Work]]:
        """Return one wave per step of the padded chains; a wave of padding is empty."""
        chains = [(sequence.id, segments(unfolded(sequence).topology) or ()) for sequence in batch]
        waves: list[list[Work]] = []
        types, index = bucket
        for number, cell in enumerate(types):
            parts = [(name, chain[number]) for name, chain in chains]
            length = max([len(nodes) for _, nodes in parts], default=0)
            if number == 0 and self.options.pad == "bucket":
                length = (index + 1) * self.options.bucket_width
            for step in range(length):
                waves.append(
                    [Work(name, nodes[step], nodes[step] + 1, cell) for name, nodes in parts if step < len(nodes)]
                )
        return waves
