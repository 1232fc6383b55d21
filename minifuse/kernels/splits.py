"""Attention over the splits of one context, and their reduction (FlashDecoding: Dao et al., 2023).

A context is cut into splits of a fixed number of tokens, which are attended to independently:

    o = softmax(s) v,   lse = log2(sum(2^s)),   s = q k / sqrt(head_dim) in units of log 2

and a second kernel combines the splits i of a context:

    out = sum_i(2^(lse_i - m) o_i) / sum_i(2^(lse_i - m)),   m = max_i(lse_i)

A context of one split is complete after the first kernel; if all contexts are, the second is not launched. Because the
size of a split is fixed, and not their number, the bits of a sequence do not depend on the rest of the batch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Shipped
from minifuse.kernels.split_shape import REDUCE_WARPS, SPLIT, reduce_form, signature_of
from minifuse.kernels.tile import slot_of


@triton.jit
def visible_range(contexts_ptr, first_ptr, sequence, HAS_FIRST: tl.constexpr):
    """The tokens [begin, end) that the last token of a context attends to: itself always."""
    end = tl.load(contexts_ptr + sequence)
    begin = 0
    if HAS_FIRST:
        begin = tl.minimum(tl.load(first_ptr + sequence), end - 1)
    return begin, end


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
    """Attend to the tokens [begin, end) of a sequence under KV head program_id(0), whose query heads are the rows of a
    matrix: split program_id(1), and if there are more splits than programs, every num_programs(1)-th after it.
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
            valid = token < high
            slot = token.to(tl.int64) if PAGE == 0 else slot_of(table_ptr, 0, token, PAGE, valid)
            offsets = slot[:, None] * stride_slot + dim[None, :]
            kv_mask = valid[:, None] & (dim < HEAD_DIM)[None, :]
            k = tl.load(keys_ptr + offsets, mask=kv_mask, other=0.0)
            v = tl.load(values_ptr + offsets, mask=kv_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(valid[None, :], scores, float("-inf"))
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
    begin, end = visible_range(contexts_ptr, first_ptr, sequence, HAS_FIRST)
    if end - begin <= SPLIT:
        return  # complete after `attend_splits`
    count = tl.cdiv(end - begin, SPLIT)
    index = (sequence * tl.num_programs(0) + head) * splits
    dim = tl.arange(0, HEAD_DIM_PADDED)
    acc = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    total = 0.0
    peak = float("-inf")
    for start in range(0, count, BLOCK):
        split = start + tl.arange(0, BLOCK)
        mask = split < count
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


def reduce_splits(
    out: Tensor, partial: Tensor, lse: Tensor, contexts: Tensor, first: Tensor | None, split: int
) -> None:
    """Combine the splits of each context, unless no context is longer than one split."""
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


def attend_one_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k / sqrt(head_dim)) v for one query [num_heads, head_dim] and keys [tokens, num_kv_heads, head_dim]."""
    grouped = q.unflatten(0, (k.shape[1], -1))  # [num_kv_heads, group, head_dim]
    weights = (torch.einsum("hgd,thd->hgt", grouped, k) / math.sqrt(q.shape[1])).softmax(-1)
    return torch.einsum("hgt,thd->hgd", weights, v).flatten(0, 1)


def _shipped(head_dim: int, *, has_first: bool = False) -> Shipped:
    constants = {**reduce_form(head_dim, SPLIT), "HAS_FIRST": has_first}
    name = f"decode reduce d{head_dim}" + " first" * has_first
    return Shipped(name, _reduce_kernel, signature_of(_reduce_kernel, constants), constants, REDUCE_WARPS, 3)


SHIPPED: tuple[Shipped, ...] = (
    *(_shipped(dim) for dim in (64, 128)),
    _shipped(128, has_first=True),
)
