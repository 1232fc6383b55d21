"""Multi-token attention over KV in blocks: prompts and single tokens in one call (Pensieve, 3.4.4)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.ragged import tables_of
from minifuse.attention.rows import BatchRows
from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.core.plan import Plan, Span
from minifuse.memory.storage import KVStorage

__all__ = ["PagedAttention"]


class PagedAttention(Backend):
    """Every piece of work is some queries at the end of a context, in blocks or in consecutive slots."""

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        work = plan.work[slice(*span)]
        tables, page = tables_of(plan.places[slice(*span)])
        queries = [item.num_tokens for item in work]
        contexts = [item.stop for item in work]
        return RaggedIndex.of(queries, contexts, tables, page, cache.num_heads, cache.num_kv_heads, cache.device)

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: RaggedIndex) -> Tensor:
        return attend(q, cache.keys[layer], cache.values[layer], reads)
