"""Attends with `reference` numerics on torch: a token's bits depend only on its own text."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minifuse.attention.backend import Backend
from minifuse.attention.batch import BatchRows
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, Span
from minifuse.kernels.operators import TorchOperators
from minifuse.kernels.rotary import RotaryRows
from minifuse.model.operators import Operators


class _RowByRow(TorchOperators):
    """Rotates token by token, so that no product depends on the number of rows."""

    def rotate_and_write(
        self, heads: Tensor, rotary: RotaryRows | None, keys: Tensor, values: Tensor, slots: Tensor, live: Tensor | None
    ) -> Tensor:
        if rotary is not None:
            num_kv_heads = keys.shape[1]
            turned = [
                rotary.rows(i, i + 1).rotate(row[:, :-num_kv_heads].clone()) for i, row in enumerate(heads.split(1))
            ]
            heads = torch.cat((torch.cat(turned), heads[:, -num_kv_heads:]), 1)
        return super().rotate_and_write(heads, None, keys, values, slots, live)


class ReferenceAttention(Backend):
    """Attends query by query, each to a fresh copy of its context.

    So every product has the same operands in the same shapes: the output is the same, bit for bit, wherever KV lies,
    whatever else is in the batch, and however a text was split into iterations. The output of idle rows is zero.
    """

    operators: Operators = _RowByRow()

    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Seq[tuple[int, Tensor]]:
        """Return each query's row of the wave, and the slots of its context."""
        first = 0 if plan.shape else rows.starts[span.start]
        queries = []
        for i in range(*span):
            work = plan.work[i]
            slots = torch.tensor(plan.places[i].slots(0, work.stop), device=cache.device)
            for token in range(work.start, work.stop):
                queries.append((rows.starts[i] - first + token - work.start, slots[: token + 1]))
        return queries

    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Seq[tuple[int, Tensor]]) -> Tensor:
        out = torch.zeros(len(q), q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        for row, slots in reads:
            k, v = (kv[layer].index_select(0, slots) for kv in (cache.keys, cache.values))  # [context, kv heads, dim]
            query = (q[row] * q.shape[2] ** -0.5).view(cache.num_kv_heads, -1, q.shape[2])
            weights = torch.bmm(query, k.permute(1, 2, 0)).softmax(-1)  # [kv heads, group, context]
            out[row] = torch.bmm(weights, v.transpose(0, 1)).flatten()
        return out
