"""Attention request by request, each over its own run of slots: selective batching (Orca; Baton, 2.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.backend import Backend
from minifuse.attention.rows import BatchRows
from minifuse.core.plan import Plan, Span
from minifuse.memory.storage import KVStorage

__all__ = ["PerSequenceAttention"]


class _Item(NamedTuple):
    """One piece of work: its rows of the wave, and its sequence's keys and values as views, one per layer."""

    start: int
    stop: int
    keys: tuple[Tensor, ...]  # num_layers of [num_kv_heads, head_dim, context]: ready to be multiplied with queries
    values: tuple[Tensor, ...]  # num_layers of [num_kv_heads, context, head_dim]
    mask: Tensor | None  # [queries, context]; None for a single query, which attends to all of it


class PerSequenceAttention(Backend):
    """Of the work [a: 0..3), [b: 7..8), rows 0 to 2 attend to the 3 slots of a, row 3 to the 8 slots of b."""

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        items = []
        first = rows.starts[span.start]
        for i in range(*span):
            _, start, stop, _ = plan.work[i]
            row = rows.starts[i] - first
            views = cache.run_of(plan.extents[i].offset, stop)
            items.append(_Item(row, row + stop - start, *views, _causal(start, stop, cache.device)))
        return items

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: list[_Item]) -> Tensor:
        _, num_heads, head_dim = q.shape
        num_kv_heads = cache.num_kv_heads
        # Query heads that share a KV head are rows of one small matrix product: [num_kv_heads, group, head_dim].
        grouped = q.unflatten(1, (num_kv_heads, -1))
        # On a CPU two plain products are a little faster in float32, and several times slower in 16 bits.
        plain = q.dtype.itemsize >= 4
        queries = (grouped * head_dim**-0.5 if plain else grouped).unbind(0)
        outputs = []
        for item in reads:
            if item.mask is None and plain:
                scores = torch.bmm(queries[item.start], item.keys[layer])  # [num_kv_heads, group, context]
                outputs.append(torch.bmm(scores.softmax(-1), item.values[layer]).view(1, -1))
            elif item.mask is None:
                attended = scaled_dot_product_attention(
                    queries[item.start].unsqueeze(0),
                    item.keys[layer].transpose(1, 2).unsqueeze(0),
                    item.values[layer].unsqueeze(0),
                )
                outputs.append(attended.view(1, -1))
            else:
                attended = scaled_dot_product_attention(
                    q[item.start : item.stop].transpose(0, 1).unsqueeze(0),
                    item.keys[layer].transpose(1, 2).unsqueeze(0),
                    item.values[layer].unsqueeze(0),
                    attn_mask=item.mask,
                    enable_gqa=num_kv_heads != num_heads,
                )  # [1, num_heads, queries, head_dim]
                outputs.append(attended.squeeze(0).transpose(0, 1).flatten(1))
        return torch.cat(outputs)


def _causal(start: int, stop: int, device: torch.device) -> Tensor | None:
    """Which of the tokens [0, stop) each query of [start, stop) attends to: itself and all before it; None: to all.

    >>> _causal(1, 3, torch.device("cpu"))
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    if stop - start == 1:
        return None
    return torch.ones(stop - start, stop, dtype=torch.bool, device=device).tril(start)
