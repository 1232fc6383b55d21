"""Attends every layout with the Triton kernels (Pensieve, 3.4.4; Flover, V-B)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.packing import lanes_of
from minifuse.attention.ragged import int32, ragged
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.core.shapes import Region
from minifuse.kernels.multi_token import multi_token_attention
from minifuse.kernels.packed import WorkLists, packed_attention
from minifuse.kernels.slots import slots_attention
from minifuse.kernels.split_kv import decode_attention
from minifuse.kernels.triton_operators import TritonOperators
from minifuse.model.operators import Operators

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, and keys and values of one layer


class TritonAttention(Backend):
    """Attends regions, rectangles, and sequences in adjacent slots or blocks, packed or not.

    Args:
        reference: compute each row so that its bits depend only on its own text.
    """

    operators: Operators = TritonOperators()

    def __init__(self, reference: bool = False) -> None:
        self.reference = reference

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Attend:
        """Return a wave's kernel, as a function of queries, keys and values."""
        if isinstance(plan.shape, Region) and not self.reference:
            lengths = [position + 1 for position in rows.positions]
            of_region = partial(slots_attention, lengths=int32(lengths, cache.device), max_length=max(lengths))
            return partial(of_region, **plan.shape._asdict())
        sequences = ragged(plan, rows, span, cache.device)
        if plan.layout.lanes and not self.reference:
            lanes = lanes_of(plan, span)
            numbers = [index - span.start for lane in lanes for index in lane]
            starts = list(accumulate(map(len, lanes), initial=0))
            lists = WorkLists(int32(starts, cache.device), int32(numbers, cache.device))
            return partial(packed_attention, ragged=sequences, lists=lists)
        if sequences.max_queries == 1 and not self.reference:
            return partial(decode_attention, ragged=sequences)
        return partial(multi_token_attention, ragged=sequences, reference=self.reference)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Attend) -> Tensor:
        return reads(q, cache.keys[layer], cache.values[layer]).flatten(1)
