"""Graph batching by padding: chains made equally long and run to completion (BatchMaker, 2.2.3, 2.7.1)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, ClassVar

from minifuse.batching.newcomers import fill
from minifuse.core.cell_graph import Topology
from minifuse.core.errors import RequestRefused
from minifuse.core.plan import Proposal, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.core.unfolded import unfolded
from minifuse.stages import Batching

__all__ = ["GraphPadded", "segments"]

Bucket = tuple[tuple[str, ...], int]  # the types of a chain's segments, and which lengths of the first it takes


@lru_cache(1024)
def segments(topology: Topology) -> tuple[tuple[int, ...], ...] | None:
    """A chain's nodes in order, cut where the type changes; None for a graph that is no chain.

    >>> from minifuse.core.cell_graph import Output
    >>> segments(Topology(("encoder", "encoder", "decoder"), ((None,), (Output(0),), (Output(1),))))
    ((0, 1), (2,))
    """
    order = topology.order
    for before, node in zip((None, *order), order, strict=False):
        if topology.sources[node] != (() if before is None else (before,)):
            return None
    return tuple(tuple(nodes) for _, nodes in groupby(order, key=lambda node: topology.cells[node]))


class GraphPadded(Batching):
    """Requests wait in buckets by length; a bucket's turn is one batch, padded and computed as one graph.

    Round robin over the buckets, no timeout: whenever a worker is idle, the next bucket with requests starts with those
    it has. All requests of a batch return when it ends; later arrivals wait. Bucket i has the lengths (w i, w i + w] of
    the first segment, which is the input; the length of the answer is not known.

    >>> # width 10: lengths 3 and 8 are of bucket 0, padded to 10, and 21 is of bucket 2, padded to 30
    """

    name: ClassVar[str] = "graph_padded"
    serves: ClassVar[frozenset[str]] = frozenset({"cells"})
    remembers = True  # whose turn it was

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(64, "requests of one batch, at most", minimum=1, batch_size=True)
        bucket_width: int = option(10, "lengths that share a bucket", minimum=1, maximum=4096)
        pad: str = option(
            "bucket",
            "inputs are padded to their bucket's longest, as a graph made beforehand is, or to the batch's longest",
            choices=("bucket", "longest"),
        )
        workers: int = option(1, "workers, each of which runs one batch at a time", minimum=1, maximum=64)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.workers: int = self.options.workers
        self.buckets: dict[Bucket, OrderedDict[str, Sequence]] = {}  # each in the order of arrival
        self.home: dict[str, Bucket] = {}  # of each waiting request
        self.last: Bucket | None = None  # whose turn it was

    def receive(self, sequence: Sequence) -> None:
        graph = unfolded(sequence)
        chain = segments(graph.topology)
        if chain is None:
            raise RequestRefused(
                f"Request {sequence.id!r} unfolds into a graph that is no chain, and padding makes chains equally long "
                "and nothing else: use graph-merged or cellular."
            )
        types = tuple(graph.nodes[nodes[0]].cell for nodes in chain)
        bucket = types, (len(chain[0]) - 1) // self.options.bucket_width
        self.buckets.setdefault(bucket, OrderedDict())[sequence.id] = sequence
        self.home[sequence.id] = bucket

    def release(self, sequence: Sequence) -> None:
        bucket = self.home.pop(sequence.id, None)
        if bucket is not None:
            self._leave(bucket, sequence)

    def _leave(self, bucket: Bucket, sequence: Sequence) -> None:
        del self.buckets[bucket][sequence.id]
        if not self.buckets[bucket]:
            del self.buckets[bucket]

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        """The next bucket's turn."""
        if not self.buckets:
            return Proposal()
        order = sorted(self.buckets)
        bucket = next((bucket for bucket in order if self.last is not None and bucket > self.last), order[0])
        room = memory.room()
        batch, reasons = fill(self.buckets[bucket].values(), room, self.options.max_batch)
        if not batch:
            return Proposal(reasons=tuple(reasons))
        self.last = bucket
        for sequence in batch:
            self._leave(bucket, sequence)
            del self.home[sequence.id]
        work, waves = self._padded(batch, bucket)
        return Proposal(tuple(work), tuple(batch), tuple(reasons), waves=tuple(waves), room=room)

    def _padded(self, batch: list[Sequence], bucket: Bucket) -> tuple[list[Work], list[Span]]:
        """One wave for each step of the padded chains, with the nodes that chains have there: possibly none."""
        chains = [segments(unfolded(sequence).topology) or () for sequence in batch]
        work: list[Work] = []
        waves: list[Span] = []
        types, index = bucket
        for number, cell in enumerate(types):
            length = max(len(chain[number]) for chain in chains)
            if number == 0 and self.options.pad == "bucket":
                length = (index + 1) * self.options.bucket_width
            for step in range(length):
                start = len(work)
                for sequence, chain in zip(batch, chains, strict=True):
                    nodes = chain[number]
                    if step < len(nodes):
                        work.append(Work(sequence.id, nodes[step], nodes[step] + 1, cell))
                waves.append(Span(start, len(work)))
        return work, waves
