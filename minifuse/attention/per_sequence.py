"""Attention request by request over each one's own run of slots (Orca's selective batching, Baton 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.batch import Batch
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan, sampled_work
from minifuse.request import Sequence

__all__ = ["PerSequenceAttention"]


@dataclass(frozen=True, slots=True)
class _Item:
    """One piece of work: its rows of the batch, and its sequence's keys and values as views, one per layer."""

    start: int
    stop: int
    keys: tuple[Tensor, ...]  # num_layers of [num_kv_heads, head_dim, context]: ready to be multiplied with queries
    values: tuple[Tensor, ...]  # num_layers of [num_kv_heads, context, head_dim]
    mask: Tensor | None  # [queries, context], None for a single query: it sees everything


@dataclass(frozen=True, slots=True)
class _Wave:
    start: int  # rows of the batch
    stop: int
    slots: Tensor  # [stop - start], where their keys and values go
    items: list[_Item]


class PerSequenceAttention:
    """Tokens concatenated, [T]; no padding anywhere.

    For work [r0: 0..3), [r1: 7..8): token_ids = [r0's 3 tokens, r1's 8th], positions = [0, 1, 2, 7], rows 0..3 attend
    to r0's 3 slots and row 3 to r1's 8 slots.
    """

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows = [0]  # exclusive prefix sums of the work's lengths
        items = []
        for work, (offset, _) in zip(plan.work, plan.extents, strict=True):
            _, start, stop, _ = work
            tokens = sequences[work.sequence].tokens
            if stop - start == 1:
                token_ids.append(tokens[start])
                positions.append(start)
                slots.append(offset + start)
            else:
                token_ids += tokens[start:stop]
                positions += range(start, stop)
                slots += range(offset + start, offset + stop)
            rows.append(len(token_ids))
            items.append(_Item(rows[-2], rows[-1], *cache.run_of(offset, stop), _causal(start, stop, cache.device)))
        slots_tensor = torch.tensor(slots, device=cache.device)
        sampled = sampled_work(plan, sequences)
        return Batch(
            token_ids=torch.tensor(token_ids, device=cache.device),
            positions=torch.tensor(positions, device=cache.device),
            waves=tuple(_Wave(rows[a], rows[b], slots_tensor[rows[a] : rows[b]], items[a:b]) for a, b in plan.waves),
            sampled=tuple(plan.work[i].sequence for i in sampled),
            last_tokens=torch.tensor([rows[i + 1] - 1 for i in sampled], device=cache.device, dtype=torch.long),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: KVStorage, layer: int, wave: _Wave) -> Tensor:
        cache.write(layer, wave.slots, k[wave.start : wave.stop], v[wave.start : wave.stop])
        _, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        # Query heads that share a KV head are rows of one small matrix product: [num_kv_heads, group, head_dim].
        grouped = q.unflatten(1, (num_kv_heads, -1))
        # On a CPU two plain products are a little faster in float32, and several times slower in 16 bits.
        plain = q.dtype.itemsize >= 4
        queries = (grouped * head_dim**-0.5 if plain else grouped).unbind(0)
        outputs = []
        for item in wave.items:
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
    """Which of tokens [0, stop) each of the queries [start, stop) sees: its own and everything before.

    >>> _causal(1, 3, torch.device("cpu"))
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    if stop - start == 1:
        return None
    return torch.ones(stop - start, stop, dtype=torch.bool, device=device).tril(start)
