"""Attends packed lanes; on a CPU, torch's threads run them in parallel (FluidInfer, 4.2)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from threading import Barrier
from typing import NamedTuple

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.packing import lanes_of
from minifuse.attention.paged import index_of
from minifuse.attention.storage import KVStorage
from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.core.plan import Plan, Span


class Lane(NamedTuple):
    """Holds a lane of one wave, as tensors."""

    rows: Tensor  # [queries], rows of the wave, in the order of the lane
    ragged: RaggedIndex


class PackedAttention(Backend):
    """Starts the lanes of a wave in order; a waiting lane starts when another ends.

    One call computes all pieces of a lane, so a lane of many single tokens costs no more calls than one long prompt.
    """

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Return a pool of threads for lanes; each lane computes on one core."""
        count = torch.get_num_threads()
        pool = ThreadPoolExecutor(count, "minifuse-lanes", torch.set_num_threads, (1,))
        all_there = Barrier(count)
        list(pool.map(lambda _: all_there.wait(), range(count)))
        torch.set_num_threads(count)  # undo: what a thread sets becomes the default of later ones
        return pool

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> list[Lane]:
        first = rows.starts[span.start]
        lanes = []
        for lane in lanes_of(plan, span):
            work = [plan.work[index] for index in lane]
            starts = [rows.starts[index] - first for index in lane]
            queries = [row + i for row, item in zip(starts, work, strict=True) for i in range(item.num_tokens)]
            index = index_of(work, [plan.places[index] for index in lane], cache)
            lanes.append(Lane(torch.tensor(queries, device=cache.device), index))
        return lanes

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: list[Lane]) -> Tensor:
        out = q.new_empty(len(q), q.shape[1] * q.shape[2])
        if len(reads) == 1 or torch.get_num_threads() == 1 or q.device.type != "cpu":
            for lane in reads:
                self.attend_lane(lane, q, cache, layer, out)
        else:
            run = partial(self.attend_lane, q=q, cache=cache, layer=layer, out=out)
            list(self._pool.map(run, reads))  # raises what a lane has raised
        return out

    @torch.inference_mode()
    def attend_lane(self, lane: Lane, q: Tensor, cache: KVStorage, layer: int, out: Tensor) -> None:
        """Compute the pieces of one lane, and write their rows of `out`."""
        out[lane.rows] = attend(q[lane.rows], cache.keys[layer], cache.values[layer], lane.ragged)
