"""Attends packed lanes: in one call, or in parallel threads of a CPU (FluidInfer, 4.2)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
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
from minifuse.kernels.one_core import one_core_threads


class Lane(NamedTuple):
    """Holds a lane of one wave, or all lanes together, as tensors."""

    rows: Tensor | None  # [queries], rows of the wave, in the order of the lane; None: all rows, in their own order
    ragged: RaggedIndex


class PackedAttention(Backend):
    """Starts the lanes of a wave in order; a waiting lane starts when another ends.

    One call computes all pieces of a lane, so a lane of many single tokens costs no more calls than one long prompt.
    With one thread, and in waves of single tokens, one call computes all lanes. With prompts, two threads took 0.68 to
    1.03 times as long for one call of all pieces as for lanes (`benchmarks/results/packing.md`).
    """

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Return a pool of threads for lanes."""
        return one_core_threads(torch.get_num_threads(), "minifuse-lanes")

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> list[Lane]:
        if cache.device.type != "cpu" or self._in_one_call(plan, span):
            return [Lane(None, index_of(plan.work[slice(*span)], plan.places[slice(*span)], cache))]
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
        if reads[0].rows is None:
            return attend(q, cache.keys[layer], cache.values[layer], reads[0].ragged)
        out = q.new_empty(len(q), q.shape[1] * q.shape[2])
        run = partial(self.attend_lane, q=q, cache=cache, layer=layer, out=out)
        list(self._pool.map(run, reads))  # raises what a lane has raised
        return out

    @staticmethod
    def _in_one_call(plan: Plan, span: Span) -> bool:
        """Return whether one call computes all lanes of a wave."""
        return torch.get_num_threads() == 1 or all(item.num_tokens == 1 for item in plan.work[slice(*span)])

    @torch.inference_mode()
    def attend_lane(self, lane: Lane, q: Tensor, cache: KVStorage, layer: int, out: Tensor) -> None:
        """Compute the pieces of one lane, and write their rows of `out`."""
        out[lane.rows] = attend(q[lane.rows], cache.keys[layer], cache.values[layer], lane.ragged)
