"""Multi-token attention (Pensieve, 3.4.4): any number of queries per sequence, paged or contiguous KV.

One kernel serves prefill, chunks, decode and the spans that Pensieve recomputes in the middle of a context, because
they differ in one number only: how many of a context's last tokens are queries. A program takes BLOCK_Q queries of one
sequence and all heads that share one KV head, as the rows of one matrix (BLOCK_M >= BLOCK_Q x group), so that a key
is read once for all of them. The program walks the context in tiles of BLOCK_N tokens with an online softmax:

    m' = max(m, max(s)),   p = 2^(s - m'),   l' = l 2^(m - m') + sum(p),   acc' = acc 2^(m - m') + p V,   out = acc / l

with s = q k / sqrt(head_dim) in units of log 2. Tiles that are visible to every row need no mask and come first; only
the few on the diagonal are masked.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Shipped
from minifuse.kernels.multi_token_shape import form_of
from minifuse.kernels.ragged import Ragged, check_heads, scale_of
from minifuse.kernels.tile import dot, slot_of, sum_rows, tile_owner

KERNEL = "multi_token_attention"


@triton.jit
def _walk(
    acc,  # [BLOCK_M, HEAD_DIM_PADDED]
    total,  # [BLOCK_M], l above
    peak,  # [BLOCK_M], m above
    q,  # [BLOCK_M, HEAD_DIM_PADDED]
    position,  # [BLOCK_M], of each row's token in the context
    begin,
    end,
    first,
    tables_ptr,
    table_offset,
    keys_ptr,
    values_ptr,
    scale,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    MASKED: tl.constexpr,
    IN_ORDER: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend to tokens [begin, end); unless `MASKED`, tiles are full and visible to all rows."""
    dim = tl.arange(0, HEAD_DIM_PADDED)
    dim_mask = tl.full([HEAD_DIM_PADDED], True, tl.int1)  # a mask that is true everywhere is compiled away
    if HEAD_DIM < HEAD_DIM_PADDED:
        dim_mask = dim < HEAD_DIM
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        token_mask = tl.full([BLOCK_N], True, tl.int1)
        if MASKED:
            token_mask = token < end
        slot = slot_of(tables_ptr, table_offset, token, PAGE, token_mask)
        offsets = slot[:, None] * stride_slot + dim[None, :]
        mask = token_mask[:, None] & dim_mask[None, :]
        k = tl.load(keys_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(values_ptr + offsets, mask=mask, other=0.0)

        scores = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        scores = dot(q, tl.trans(k), scores, HEAD_DIM_PADDED, IN_ORDER)
        if MASKED:
            visible = token[None, :] <= position[:, None]
            if HAS_FIRST:
                visible = visible & ((token >= first)[None, :] | (token[None, :] == position[:, None]))
            scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
        shift = new_peak
        if MASKED and HAS_FIRST:  # no token of this row may have been visible yet
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        p = tl.math.exp2(tl.fma(scores, scale, -shift[:, None]))
        shrink = tl.math.exp2(peak - shift)
        total = tl.fma(total, shrink, sum_rows(p, BLOCK_N, IN_ORDER))
        if not IN_ORDER:
            p = p.to(v.dtype)
        acc = dot(p, v, acc * shrink[:, None], BLOCK_N, IN_ORDER)
        peak = new_peak
    return acc, total, peak


@triton.jit
def attend_tile(
    out_ptr,  # [T, num_heads, head_dim]
    q_ptr,  # [T, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,  # [slots, num_kv_heads, head_dim]
    tables_ptr,  # [S, columns]
    sequence,
    context,  # its tokens up to and including the last query
    first,  # 0 unless HAS_FIRST
    begins,  # the row of its first query
    num_queries,
    query,  # the tile's first query, counted in its sequence
    kv_head,
    scale,  # log2(e) / sqrt(head_dim)
    stride_ot,
    stride_oh,
    stride_qt,
    stride_qh,
    stride_slot,  # of keys and of values
    stride_kv_head,
    stride_table,
    GROUP: tl.constexpr,  # query heads that share a KV head
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,  # the next power of two
    PAGE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    IN_ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute attention for BLOCK_M // GROUP queries of one sequence, under one KV head."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    position = context - num_queries + query
    end = position + tl.minimum(BLOCK_Q, num_queries - query)

    row = tl.arange(0, BLOCK_M)  # row r is query r // GROUP of the tile, under head r % GROUP of the group
    dim = tl.arange(0, HEAD_DIM_PADDED)
    mask = (row // GROUP < end - position)[:, None] & (dim < HEAD_DIM)[None, :]
    token = (begins + query).to(tl.int64)
    q_ptr += token * stride_qt + kv_head * GROUP * stride_qh
    q = tl.load(
        q_ptr + (row // GROUP * stride_qt + row % GROUP * stride_qh)[:, None] + dim[None, :], mask=mask, other=0.0
    )

    # KV tiles are counted from `first`. Tokens [first, masked) are visible to all rows. Idle queries of a rectangle, in
    # columns before `first`, attend only to themselves, so a query tile with idle queries reads KV from their columns
    # on. (The bits of reference mode do not depend on that: as BLOCK_Q <= BLOCK_N, the KV of the tile's other queries
    # is one tile, wherever the count begins.)
    masked = first
    if not IN_ORDER:
        masked += tl.maximum(position + 1 - first, 0) // BLOCK_N * BLOCK_N
    if HAS_FIRST:
        masked -= tl.maximum(first - position, 0)
    table_offset = sequence.to(tl.int64) * stride_table
    keys_ptr += kv_head * stride_kv_head
    values_ptr += kv_head * stride_kv_head

    acc = tl.zeros([BLOCK_M, HEAD_DIM_PADDED], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    positions = position + row // GROUP
    if not IN_ORDER:
        acc, total, peak = _walk(
            acc, total, peak, q, positions, first, masked, first,
            tables_ptr, table_offset, keys_ptr, values_ptr, scale, stride_slot,
            HEAD_DIM, HEAD_DIM_PADDED, PAGE, HAS_FIRST, False, IN_ORDER, BLOCK_N,
        )  # fmt: skip
    acc, total, peak = _walk(
        acc, total, peak, q, positions, masked, end, first,
        tables_ptr, table_offset, keys_ptr, values_ptr, scale, stride_slot,
        HEAD_DIM, HEAD_DIM_PADDED, PAGE, HAS_FIRST, True, IN_ORDER, BLOCK_N,
    )  # fmt: skip
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_ptr += token * stride_ot + kv_head * GROUP * stride_oh
    tl.store(out_ptr + (row // GROUP * stride_ot + row % GROUP * stride_oh)[:, None] + dim[None, :], out, mask=mask)


@triton.jit(do_not_specialize=["num_sequences", "stride_table"])
def _multi_token_kernel(
    out_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    cu_seqlens_ptr,  # [S + 1]
    contexts_ptr,  # [S]
    first_ptr,  # [S], read if HAS_FIRST
    tables_ptr,
    num_sequences,
    scale,
    stride_ot,
    stride_oh,
    stride_qt,
    stride_qh,
    stride_slot,
    stride_kv_head,
    stride_table,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    IN_ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Each program computes attention for one tile of queries, under one KV head."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a chunk's last queries read the most KV: they start first
    kv_head = tl.program_id(1).to(tl.int64)
    sequence = tile_owner(cu_seqlens_ptr, tile, num_sequences, BLOCK_Q)
    begins = tl.load(cu_seqlens_ptr + sequence)
    num_queries = tl.load(cu_seqlens_ptr + sequence + 1) - begins
    query = (tile - begins // BLOCK_Q - sequence) * BLOCK_Q
    if query >= num_queries:
        return
    first = 0
    if HAS_FIRST:
        first = tl.load(first_ptr + sequence)
    attend_tile(
        out_ptr, q_ptr, keys_ptr, values_ptr, tables_ptr,
        sequence, tl.load(contexts_ptr + sequence), first, begins, num_queries, query, kv_head, scale,
        stride_ot, stride_oh, stride_qt, stride_qh, stride_slot, stride_kv_head, stride_table,
        GROUP, HEAD_DIM, HEAD_DIM_PADDED, PAGE, HAS_FIRST, IN_ORDER, BLOCK_M, BLOCK_N,
    )  # fmt: skip


def multi_token_attention_torch(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, reference: bool = False
) -> Tensor:
    """Compute `multi_token_attention` in PyTorch: the twin of all attention kernels.

    Float16 and bfloat16 are computed in float32; `reference` has no effect.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    exact = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // keys.shape[1]
    for s, (begin, end) in enumerate(pairwise(ragged.cu_seqlens.tolist())):
        column = torch.arange(int(ragged.contexts[s]), device=q.device)
        row = column[len(column) - (end - begin) :, None]
        visible = column <= row
        if ragged.first is not None:
            visible &= (column >= ragged.first[s]) | (column == row)
        slots = ragged.slots(s, column)
        k, v = (kv[slots].to(exact).repeat_interleave(group, 1) for kv in (keys, values))
        v = v.masked_fill(~visible.any(0)[:, None, None], 0.0)  # an unused slot may hold NaN, and 0 x NaN is NaN
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(exact), k) / math.sqrt(q.shape[2])
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
    return out


def multi_token_attention(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, reference: bool = False
) -> Tensor:
    """Compute causal attention for the last tokens of S contexts, over paged or contiguous KV.

    Args:
        q: [T, num_heads, head_dim], the queries of all sequences, concatenated.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        ragged: the sequence of each query, and the slots of each context.
        out: like `q`; allocated if None.
        reference: whether the bits of a query's row depend only on its context, not on chunks, slots, or the rest of
            the batch. This is slower: every tile has the same size and is masked, and all sums run in the order of the
            context. A left-padded row gets the same bits as an unpadded one.

    Returns:
        `out`, [T, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: the arguments do not fit together.
    """
    num_tokens, num_heads, head_dim = check_heads(KERNEL, q, keys, values, out)
    ragged.check(KERNEL, q, keys)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    num_sequences, num_kv_heads = ragged.contexts.shape[0], keys.shape[1]
    if num_tokens == 0:
        return out
    form = form_of(
        num_heads // num_kv_heads,
        head_dim,
        ragged.page,
        ragged.max_queries,
        has_first=ragged.first is not None,
        itemsize=q.element_size(),
        reference=reference,
    )
    block_q = form["BLOCK_M"] // form["GROUP"]
    _multi_token_kernel[(num_tokens // block_q + num_sequences, num_kv_heads)](
        out, q, keys, values,
        ragged.cu_seqlens, ragged.contexts, ragged.first_or_contexts, ragged.tables, num_sequences, scale_of(head_dim),
        *out.stride()[:2], *q.stride()[:2], *keys.stride()[:2], ragged.tables.stride(0),
        **form,
    )  # fmt: skip
    return out


def _shipped(
    group: int, head_dim: int, page: int, queries: int, *, has_first: bool = False, reference: bool = False
) -> Shipped:
    name = f"multi_token d{head_dim} g{group} page{page} " + ("decode" if queries == 1 else "chunk")
    name += " first" * has_first + " reference" * reference
    form = form_of(group, head_dim, page, queries, has_first=has_first, reference=reference)
    return Shipped(name, _multi_token_kernel, form)


SHIPPED = [
    *(_shipped(group, dim, 16, queries) for dim in (64, 128) for group in (1, 4, 8) for queries in (1, 2048)),
    *(_shipped(1, 256, 16, queries) for queries in (1, 2048)),  # GPT-J
    *(_shipped(4, 128, 0, queries) for queries in (1, 2048)),
    _shipped(4, 128, 0, 2048, has_first=True),
    *(_shipped(4, 128, page, 2048, reference=True) for page in (0, 16)),
]
