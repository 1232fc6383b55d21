"""Attention request by request, over runs of slots: selective batching (Orca; Baton, 2.2)."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.batch import Batch, Wave, batch_of, int64, ragged_rows, write
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Extent, Plan, Span
from minifuse.core.request import Sequence
from minifuse.model.operators import Operators, Rotation


class Item(NamedTuple):
    """One piece of work: its rows of the wave, and views of keys and values."""

    start: int
    stop: int
    keys: tuple[Tensor, ...]  # num_layers of [num_kv_heads, head_dim, context]: ready to be multiplied with queries
    values: tuple[Tensor, ...]  # num_layers of [num_kv_heads, context, head_dim]
    mask: Tensor | None  # [queries, context]; None for a single query, which attends to the whole context


class PerSequenceAttention:
    """Attends each sequence separately: for a[0:3] and b[7:8], row 3 attends to b[0:8]."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        rows = ragged_rows(plan, sequences)
        slots = int64(rows.slots, cache.device)
        ends = [*rows.starts, len(rows.slots)]
        bounds = [(span, ends[span.start], ends[span.stop]) for span in plan.waves]
        waves = [Wave(a, b, slots[a:b], None, self.reads(plan, span, cache)) for span, a, b in bounds]
        return batch_of(plan, sequences, rows, waves)

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        q = write(self.operators, heads, rotary, cache, layer, wave)
        return self.attention(q, cache, layer, wave.reads)

    def reads(self, plan: Plan, span: Span, cache: KVStorage) -> list[Item]:
        """Return views of the KV that a wave's work attends to, for all layers."""
        items, row = [], 0
        for (_, start, stop, _), place in zip(plan.work[slice(*span)], plan.places[slice(*span)], strict=True):
            if not isinstance(place, Extent):
                raise LawBroken("layout", f"step {plan.step} has {place} where consecutive slots are read")
            views = cache.run_of(place.offset, stop)
            items.append(Item(row, row + stop - start, *views, _causal(start, stop, cache.device)))
            row += stop - start
        return items

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: list[Item]) -> Tensor:
        """Attend queries [rows, num_heads, head_dim] to one layer: [rows, num_heads * head_dim]."""
        # Query heads that share a KV head are rows of one small matrix product: [num_kv_heads, group, head_dim].
        grouped = q.unflatten(1, (cache.num_kv_heads, -1))
        # For one query, two plain products are a little faster in float32, but much slower in 16 bits on a CPU.
        plain = q.dtype.itemsize >= 4
        queries = (grouped * q.shape[2] ** -0.5 if plain else grouped).unbind(0)
        outputs = []
        for item in reads:
            if item.mask is None and plain:
                scores = torch.bmm(queries[item.start], item.keys[layer])  # [num_kv_heads, group, context]
                outputs.append(torch.bmm(scores.softmax(-1), item.values[layer]).view(1, -1))
                continue
            k, v = item.keys[layer].transpose(1, 2).unsqueeze(0), item.values[layer].unsqueeze(0)
            if item.mask is None:
                attended = scaled_dot_product_attention(queries[item.start].unsqueeze(0), k, v)
                outputs.append(attended.view(1, -1))
            else:
                heads = q[item.start : item.stop].transpose(0, 1).unsqueeze(0)  # [1, num_heads, queries, head_dim]
                attended = scaled_dot_product_attention(heads, k, v, item.mask, enable_gqa=grouped.shape[2] > 1)
                outputs.append(attended.squeeze(0).transpose(0, 1).flatten(1))
        return torch.cat(outputs)


def _causal(start: int, stop: int, device: torch.device) -> Tensor | None:
    """Return [queries, context], True where a query sees a token; None for one query."""
    if stop - start == 1:
        return None
    return torch.ones(stop - start, stop, dtype=torch.bool, device=device).tril(start)
