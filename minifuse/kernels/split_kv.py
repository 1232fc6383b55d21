"""Decode over split KV: one query per sequence, whose context is cut in pieces so that the whole GPU reads it.

A decode batch has no more rows than sequences, too few to fill a GPU, and contexts of very uneven lengths. So a context
is cut into splits of a fixed number of tokens, which are attended independently (FlashDecoding: Dao et al., 2023):

    o = softmax(s) v,   lse = log2(sum(2^s)),   s = q k / sqrt(head_dim) in units of log 2

and a second kernel weighs what was found in the splits i of a context:

    out = sum_i(2^(lse_i - m) o_i) / sum_i(2^(lse_i - m)),   m = max_i(lse_i)

A context that fits one split is done after the first kernel; if all do, there is no second. Because it is the size of a
split that is fixed, and not their number, a sequence gets the same bits alone and in any crowd.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.arguments import check_ragged
from minifuse.kernels.launch import Shipped, check
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.split_shape import (
    NUM_WARPS,
    REDUCE_WARPS,
    SPLIT,
    check_decode,
    form_of,
    grid_of,
    reduce_form,
    signature_of,
    workspace,
)
from minifuse.kernels.tile import slot_of

__all__ = [
    "SHIPPED",
    "attend_one_torch",
    "attend_splits",
    "decode_attention",
    "decode_attention_torch",
    "reduce_splits",
]

KERNEL = "decode_attention"


@triton.jit
def attend_splits(
    out_ptr,  # [S, num_heads, head_dim]
    partial_ptr,  # [S, num_heads, splits, head_dim], o above
    lse_ptr,  # [S, num_heads, splits]
    q_ptr,  # [S, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]; with PAGE 0 they begin with token 0 of the sequence
    values_ptr,
    table_ptr,  # [columns], the sequence's blocks, read unless PAGE is 0
    sequence,
    begin,
    end,
    splits,
    scale,  # log2(e) / sqrt(head_dim)
    stride_os,
    stride_oh,
    stride_qs,
    stride_qh,
    stride_slot,  # of keys and of values
    stride_kv_head,
    GROUP: tl.constexpr,  # query heads that share a KV head
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,  # the next power of two
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend the tokens [begin, end) of a sequence under KV head program_id(0), whose group of query heads are the rows
    of one matrix: split program_id(1), and where there are more splits than programs, every num_programs(1)-th from it.
    """
    kv_head = tl.program_id(0)
    sequence = sequence.to(tl.int64)
    row = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row
    dim = tl.arange(0, HEAD_DIM_PADDED)
    mask = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + sequence * stride_qs + (head * stride_qh)[:, None] + dim[None, :], mask=mask, other=0.0)
    keys_ptr += kv_head * stride_kv_head
    values_ptr += kv_head * stride_kv_head

    for split in range(tl.program_id(1), tl.cdiv(end - begin, SPLIT), tl.num_programs(1)):
        acc = tl.zeros([BLOCK_M, HEAD_DIM_PADDED], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        low = begin + split * SPLIT
        high = tl.minimum(low + SPLIT, end)
        for start in range(low, high, BLOCK_N):
            token = start + tl.arange(0, BLOCK_N)
            seen = token < high
            slot = token.to(tl.int64) if PAGE == 0 else slot_of(table_ptr, 0, token, PAGE, seen)
            offsets = slot[:, None] * stride_slot + dim[None, :]
            kv_mask = seen[:, None] & (dim < HEAD_DIM)[None, :]
            k = tl.load(keys_ptr + offsets, mask=kv_mask, other=0.0)
            v = tl.load(values_ptr + offsets, mask=kv_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
            p = tl.math.exp2(tl.fma(scores, scale, -new_peak[:, None]))
            shrink = tl.math.exp2(peak - new_peak)
            total = total * shrink + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
            peak = new_peak
        acc = acc / total[:, None]
        if end - begin <= SPLIT:
            out = acc.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + sequence * stride_os + (head * stride_oh)[:, None] + dim[None, :], out, mask=mask)
        else:
            index = (sequence * tl.num_programs(0) * GROUP + head) * splits + split
            tl.store(partial_ptr + index[:, None] * HEAD_DIM + dim[None, :], acc, mask=mask)
            tl.store(lse_ptr + index, peak + tl.math.log2(total), mask=row < GROUP)


@triton.jit
def _seen(contexts_ptr, first_ptr, sequence, HAS_FIRST: tl.constexpr):
    """The tokens [begin, end) that the last token of a context sees: itself always."""
    end = tl.load(contexts_ptr + sequence)
    begin = 0
    if HAS_FIRST:
        begin = tl.minimum(tl.load(first_ptr + sequence), end - 1)
    return begin, end


@triton.jit(do_not_specialize=["splits", "stride_table"])
def _decode_kernel(
    out_ptr,  # [S, num_heads, head_dim]
    partial_ptr,  # [S, num_heads, splits, head_dim], written for contexts of more than SPLIT tokens
    lse_ptr,  # [S, num_heads, splits]
    q_ptr,  # [S, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,
    contexts_ptr,  # [S]
    first_ptr,  # [S], read if HAS_FIRST
    tables_ptr,  # [S, columns]
    splits,
    scale,
    stride_os,
    stride_oh,
    stride_qs,
    stride_qh,
    stride_slot,
    stride_kv_head,
    stride_table,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: one KV head, and one split (seldom more) of one sequence."""
    sequence = tl.program_id(2)
    begin, end = _seen(contexts_ptr, first_ptr, sequence, HAS_FIRST)
    if tl.program_id(1) * SPLIT >= end - begin:
        return
    tables_ptr += sequence.to(tl.int64) * stride_table
    if PAGE == 0:
        first_slot = tl.load(tables_ptr).to(tl.int64)
        keys_ptr += first_slot * stride_slot
        values_ptr += first_slot * stride_slot
    attend_splits(
        out_ptr, partial_ptr, lse_ptr, q_ptr, keys_ptr, values_ptr, tables_ptr, sequence, begin, end, splits, scale,
        stride_os, stride_oh, stride_qs, stride_qh, stride_slot, stride_kv_head,
        GROUP, HEAD_DIM, HEAD_DIM_PADDED, PAGE, SPLIT, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def _reduce_kernel(
    out_ptr,  # [S, num_heads, head_dim]
    partial_ptr,  # [S, num_heads, splits, head_dim]
    lse_ptr,  # [S, num_heads, splits]
    contexts_ptr,  # [S]
    first_ptr,  # [S], read if HAS_FIRST
    splits,
    stride_os,
    stride_oh,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: one head of one sequence, BLOCK splits at a time."""
    head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, end = _seen(contexts_ptr, first_ptr, sequence, HAS_FIRST)
    if end - begin <= SPLIT:
        return  # done already
    mine = tl.cdiv(end - begin, SPLIT)
    index = (sequence * tl.num_programs(0) + head) * splits
    dim = tl.arange(0, HEAD_DIM_PADDED)
    acc = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    total = 0.0
    peak = float("-inf")
    for start in range(0, mine, BLOCK):
        split = start + tl.arange(0, BLOCK)
        mask = split < mine
        lse = tl.load(lse_ptr + index + split, mask=mask, other=float("-inf"))
        partial = tl.load(
            partial_ptr + (index + split)[:, None] * HEAD_DIM + dim[None, :],
            mask=mask[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_peak = tl.maximum(peak, tl.max(lse, 0))
        weight = tl.math.exp2(lse - new_peak)
        shrink = tl.math.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(partial * weight[:, None], 0)
        peak = new_peak
    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + sequence * stride_os + head * stride_oh + dim, out, mask=dim < HEAD_DIM)


def decode_attention_torch(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, split: int = SPLIT
) -> Tensor:
    """The same in PyTorch, a sequence at a time and in one piece: what `decode_attention` means. Float16 and bfloat16
    go by way of float32; `split` changes nothing.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    exact = torch.promote_types(q.dtype, torch.float32)
    for s, context in enumerate(ragged.contexts.tolist()):
        begin = 0 if ragged.first is None else min(int(ragged.first[s]), context - 1)
        token = torch.arange(begin, context, device=q.device)
        if ragged.page:
            slots = ragged.tables[s, token // ragged.page] * ragged.page + token % ragged.page
        else:
            slots = ragged.tables[s, 0] + token
        out[s] = attend_one_torch(q[s].to(exact), keys[slots].to(exact), values[slots].to(exact)).to(out.dtype)
    return out


def attend_one_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k / sqrt(head_dim)) v for one query [num_heads, head_dim] and keys [tokens, num_kv_heads, head_dim]."""
    grouped = q.unflatten(0, (k.shape[1], -1))  # [num_kv_heads, group, head_dim]
    weights = (torch.einsum("hgd,thd->hgt", grouped, k) / math.sqrt(q.shape[1])).softmax(-1)
    return torch.einsum("hgt,thd->hgd", weights, v).flatten(0, 1)


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, split: int = SPLIT
) -> Tensor:
    """Attention of the last token of each of S contexts, over KV in pages or in one piece.

    Args:
        q: [S, num_heads, head_dim], one query per sequence.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        ragged: in which slots each context lies; `max_queries` is 1, and every context has a token.
        out: like `q`; made if not given.
        split: tokens that are attended at a time. The bits depend on it, but not on the other sequences, on
            `ragged.max_context`, or on which blocks KV lies in.

    Returns:
        `out`, [S, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: what is given does not fit together.
    """
    group = check_decode(KERNEL, q, keys, values, out, split)
    _check_single(q, ragged)
    check_ragged(KERNEL, q, keys, ragged)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if q.shape[0] == 0:
        return out
    splits = triton.cdiv(ragged.max_context, split)
    partial, lse = workspace(q, splits)
    constants, num_stages = form_of(group, q.shape[2], ragged.page, split, q.element_size())
    _decode_kernel[grid_of(q, keys, splits)](
        out,
        partial,
        lse,
        q,
        keys,
        values,
        ragged.contexts,
        ragged.contexts if ragged.first is None else ragged.first,
        ragged.tables,
        splits,
        math.log2(math.e) / math.sqrt(q.shape[2]),
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:2],
        ragged.tables.stride(0),
        **constants,
        HAS_FIRST=ragged.first is not None,
        num_warps=NUM_WARPS,
        num_stages=num_stages,
    )
    reduce_splits(out, partial, lse, ragged.contexts, ragged.first, split)
    return out


def reduce_splits(
    out: Tensor, partial: Tensor, lse: Tensor, contexts: Tensor, first: Tensor | None, split: int
) -> None:
    """The second kernel, unless no context is longer than one split."""
    num_sequences, num_heads, splits, head_dim = partial.shape
    if splits:
        _reduce_kernel[(num_heads, num_sequences)](
            out,
            partial,
            lse,
            contexts,
            contexts if first is None else first,
            splits,
            *out.stride()[:2],
            **reduce_form(head_dim, split),
            HAS_FIRST=first is not None,
            num_warps=REDUCE_WARPS,
        )


def _check_single(q: Tensor, ragged: Ragged) -> None:
    num_sequences = ragged.contexts.shape[0]
    one = ragged.max_queries == 1 and q.shape[0] == num_sequences
    check(
        KERNEL,
        one or q.shape[0] == num_sequences == 0,
        f"{num_sequences} sequences have {q.shape[0]} queries, up to {ragged.max_queries} each: give one query per "
        "sequence, or call multi_token_attention.",
    )
    check(KERNEL, num_sequences == 0 or ragged.max_context > 0, "max_context is 0: every context has a token.")


def _shipped(group: int, head_dim: int, page: int, *, has_first: bool = False) -> Shipped:
    constants, num_stages = form_of(group, head_dim, page, SPLIT)
    name = f"decode d{head_dim} g{group} page{page}" + " first" * has_first
    all_constants = {**constants, "HAS_FIRST": has_first}
    return Shipped(
        name, _decode_kernel, signature_of(_decode_kernel, all_constants), all_constants, NUM_WARPS, num_stages
    )


def _shipped_reduce(head_dim: int, *, has_first: bool = False) -> Shipped:
    constants = {**reduce_form(head_dim, SPLIT), "HAS_FIRST": has_first}
    name = f"decode reduce d{head_dim}" + " first" * has_first
    return Shipped(name, _reduce_kernel, signature_of(_reduce_kernel, constants), constants, REDUCE_WARPS, 3)


SHIPPED: tuple[Shipped, ...] = (
    *(_shipped(group, dim, page) for page in (16, 0) for dim in (64, 128) for group in (1, 4, 8)),
    _shipped(4, 128, 0, has_first=True),
    *(_shipped_reduce(dim) for dim in (64, 128)),
    _shipped_reduce(128, has_first=True),
)
