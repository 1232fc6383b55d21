"""Attention over a padded rectangle with a mask: batch-wise inference (Baton, 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.attention.batch import Batch
from minifuse.errors import LawBroken
from minifuse.memory.storage import KVStorage
from minifuse.plan import Grid, Plan, sampled_work
from minifuse.request import Sequence

__all__ = ["PaddedAttention"]

PAD = 0  # any token id will do: nobody reads what padding computes


@dataclass(frozen=True, slots=True)
class _Wave:
    rows: int
    columns: int
    real: Tensor | None  # indices of the tokens somebody asked for, None: all of them
    slots: Tensor  # where those tokens' keys and values go
    keys: tuple[Tensor, ...]  # per layer a view [rows, num_kv_heads, stop, head_dim] of the rectangle so far
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, columns, stop], added to the scores


class PaddedAttention:
    """The columns [start, stop) of every row of the plan's grid, computed whole: T = rows x (stop - start).

    Prompts of 1 and 3 tokens are two rows of three columns; row 0 begins with two idle ones. Its queries there attend
    only to themselves, and the real query sees neither.

        row 0:  . . a     mask of 'a': [0, 0, 1]
        row 1:  x y z     mask of 'z': [1, 1, 1]
    """

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        grid = plan.grid
        if not isinstance(grid, Grid):
            raise LawBroken("layout", "the padded layout was given a plan without a rectangle")
        device, columns = cache.device, grid.stop - grid.start
        token_ids = [PAD] * grid.num_tokens
        positions = [0] * grid.num_tokens
        first_column = [grid.stop] * grid.rows  # where a row's tokens begin; a finished row has none
        real: list[int] = []
        slots: list[int] = []
        ends: list[int] = []  # the batch index of each work's last token
        for work, (offset, _) in zip(plan.work, plan.extents, strict=True):
            row, padding = divmod(offset - grid.offset, grid.width)
            first_column[row] = padding
            begin = row * columns + padding + work.start - grid.start
            end = begin + work.stop - work.start
            token_ids[begin:end] = sequences[work.sequence].tokens[work.start : work.stop]
            positions[begin:end] = range(work.start, work.stop)
            real += range(begin, end)
            slots += range(offset + work.start, offset + work.stop)
            ends.append(end - 1)
        asked = None if real == list(range(grid.num_tokens)) else torch.tensor(real, device=device)
        keys, values = cache.rows_of(grid.offset, grid.rows, grid.width, grid.stop)
        wave = _Wave(
            rows=grid.rows,
            columns=columns,
            real=asked,
            slots=torch.tensor(slots, device=device),
            keys=keys,
            values=values,
            mask=_mask(first_column, grid.start, grid.stop, cache.keys.dtype, device),
        )
        sampled = sampled_work(plan, sequences)
        return Batch(
            token_ids=torch.tensor(token_ids, device=device),
            positions=torch.tensor(positions, device=device),
            waves=(wave,),
            sampled=tuple(plan.work[i].sequence for i in sampled),
            last_tokens=torch.tensor([ends[i] for i in sampled], device=device, dtype=torch.long),
            real=asked,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: KVStorage, layer: int, wave: _Wave) -> Tensor:
        if wave.real is None:
            cache.write(layer, wave.slots, k, v)
        else:
            cache.write(layer, wave.slots, k[wave.real], v[wave.real])
        _, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        group = num_heads // num_kv_heads
        if wave.columns == 1:
            # A decode step: query heads that share a KV head are the rows of one product, [rows, kv heads, group, dim].
            attended = scaled_dot_product_attention(
                q.view(wave.rows, num_kv_heads, group, head_dim),
                wave.keys[layer],
                wave.values[layer],
                attn_mask=wave.mask,
            )
            return attended.view(wave.rows, -1)
        attended = scaled_dot_product_attention(
            q.unflatten(0, (wave.rows, wave.columns)).transpose(1, 2),
            wave.keys[layer],
            wave.values[layer],
            attn_mask=wave.mask,
            enable_gqa=group > 1,
        )  # [rows, num_heads, columns, head_dim]
        return attended.transpose(1, 2).reshape(wave.rows * wave.columns, -1)


def _mask(first_column: list[int], start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each query of columns [start, stop) may see, as 0 or -inf: [rows, 1, columns, stop].

    A query in column c of a row that begins in column f sees columns [f, c], and always itself: an idle query that saw
    nothing would compute softmax over an empty set, which is NaN.
    """
    keys = torch.arange(stop, device=device)
    queries = keys[start:, None]  # [columns, 1]
    first = torch.tensor(first_column, device=device)[:, None, None]  # [rows, 1, 1]
    seen = ((keys >= first) & (keys <= queries)) | (keys == queries)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, float("-inf")).unsqueeze(1)
