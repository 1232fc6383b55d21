"""Attends over KV in blocks: prompts and single tokens in one call (Pensieve, 3.4.4)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.ragged import contexts_of
from minifuse.attention.storage import KVStorage
from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.core.plan import Place, Plan, Span, Work


def index_of(work: Seq[Work], places: Seq[Place], cache: KVStorage) -> RaggedIndex:
    """Return the index of this work: its queries, in adjacent rows, and their contexts."""
    return RaggedIndex.of(*contexts_of(work, places), cache.num_heads, cache.num_kv_heads, cache.device)


class PagedAttention(Backend):
    """Attends each piece of work to its context, in blocks or consecutive slots."""

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> RaggedIndex:
        return index_of(plan.work[slice(*span)], plan.places[slice(*span)], cache)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: RaggedIndex) -> Tensor:
        return attend(q, cache.keys[layer], cache.values[layer], reads)
