"""Attention over adjacent buffers: one token in each of [offset, offset + size), all at once (Flover, V-B, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.batch import Batch
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan, Region, sampled_work
from minifuse.request import Sequence

__all__ = ["SlotsAttention"]

PAD = 0  # any token id will do: nobody reads what an idle buffer computes


@dataclass(frozen=True, slots=True)
class _Wave:
    live: Tensor | None  # buffers of the region with a token somebody asked for, None: all of them
    slots: Tensor  # where those tokens' keys and values go
    keys: tuple[Tensor, ...]  # per layer a view [size, num_kv_heads, longest, head_dim] of the region's buffers
    values: tuple[Tensor, ...]
    mask: Tensor  # [size, 1, 1, longest], added to the scores


class SlotsAttention(PerSequenceAttention):
    """The region's buffers are views of the storage, without a gather; row i of every tensor is buffer offset + i.

    Buffers of 8 slots; the region [1, 4) holds r2 at its 5th token, nobody, and r1 at its 2nd. With the work
    [r1: 1..2), [r2: 4..5), token_ids = [r2's 5th, idle, r1's 2nd], positions = [4, 0, 1], KV goes to slots
    [8 + 4, 24 + 1], the rows somebody asked for are [2, 0] in the order of the work, and row i sees its first
    [5, 1, 2] tokens.

    An iteration with longer work, which is a prompt, is attended request by request.
    """

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        region = plan.grid
        if not isinstance(region, Region):
            return super().batch(plan, sequences, cache)
        device, width, size = cache.device, region.width, region.size
        token_ids, positions, slots = [PAD] * size, [0] * size, [-1] * size
        rows = []
        for (name, start, _, _), (offset, _) in zip(plan.work, plan.extents, strict=True):
            row = offset // width - region.offset
            token_ids[row], positions[row], slots[row] = sequences[name].tokens[start], start, offset + start
            rows.append(row)
        live = None if len(rows) == size else torch.tensor([r for r in range(size) if slots[r] >= 0], device=device)
        seen = torch.tensor(positions, device=device)
        longest = max(positions) + 1
        keys, values = cache.rows_of(region.offset * width, size, width, longest)
        mask = torch.zeros(size, longest, dtype=cache.keys.dtype, device=device)
        mask.masked_fill_(torch.arange(longest, device=device) > seen[:, None], float("-inf"))
        wave = _Wave(
            live=live,
            slots=torch.tensor([slot for slot in slots if slot >= 0], device=device),
            keys=keys,
            values=values,
            mask=mask[:, None, None],
        )
        sampled = sampled_work(plan, sequences)
        return Batch(
            token_ids=torch.tensor(token_ids, device=device),
            positions=seen,
            waves=(wave,),
            sampled=tuple(plan.work[i].sequence for i in sampled),
            last_tokens=torch.tensor([rows[i] for i in sampled], device=device, dtype=torch.long),
            real=None if rows == list(range(size)) else torch.tensor(rows, device=device),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: KVStorage, layer: int, wave: Any) -> Tensor:
        if not isinstance(wave, _Wave):
            return super().attend(q, k, v, cache, layer, wave)
        if wave.live is not None:
            k, v = k[wave.live], v[wave.live]  # an idle buffer may be somebody's who is being pre-processed
        cache.write(layer, wave.slots, k, v)
        size, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        attended = scaled_dot_product_attention(
            q.view(size, num_kv_heads, num_heads // num_kv_heads, head_dim),  # the heads that share a KV head together
            wave.keys[layer],
            wave.values[layer],
            attn_mask=wave.mask,
        )
        return attended.view(size, -1)
