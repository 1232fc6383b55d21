"""Attention over the splits of one context, and their reduction (FlashDecoding: Dao et al., 2023).

A context is cut into splits of a fixed number of tokens, which are attended to independently:

    o = softmax(s) v,   lse = log2(sum(2^s)),   s = q k / sqrt(head_dim) in units of log 2

and a second kernel combines the splits i of a context:

    out = sum_i(2^(lse_i - m) o_i) / sum_i(2^(lse_i - m)),   m = max_i(lse_i)

A context of one split is complete after the first kernel; if all contexts are, the second kernel is not launched. The
size of splits is fixed, not their number, so that the bits of a sequence do not depend on the rest of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Form, Shipped, check
from minifuse.kernels.ragged import check_heads, scale_of
from minifuse.kernels.tile import slot_of

SPLIT = 512  # tokens: the 32-bit results of a split are then at most 3% of the KV it reads, for groups up to 8
NUM_WARPS = 4
REDUCE_WARPS = 8


@triton.jit
def visible_range(contexts_ptr, first_ptr, sequence, HAS_FIRST: tl.constexpr):
    """Find the tokens [begin, end) that a context's last token attends to."""
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
    """Attend to splits of the tokens [begin, end) of a sequence, under one KV head.

    The KV head is program_id(0); its query heads are the rows of a matrix. The splits are program_id(1) and, if there
    are more splits than programs, every num_programs(1)-th after it.
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
    """Each program reduces one head of one sequence, BLOCK splits at a time."""
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


def reduce_form(head_dim: int, split: int = SPLIT, *, has_first: bool = False) -> Form:
    """Choose the form of the reduction: 64 splits at a time.

    The splits of a context of 128k tokens are read in four steps, each as long as a load takes."""
    return {
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": int(triton.next_power_of_2(head_dim)),
        "HAS_FIRST": has_first,
        "SPLIT": split,
        "BLOCK": 64,
        "num_warps": REDUCE_WARPS,
    }


def split_form(group: int, head_dim: int, page: int, split: int = SPLIT, itemsize: int = 2) -> Form:
    """Derive the form of a kernel that calls `attend_splits`, by arithmetic for an H200.

    To read 4.8 TB/s at a latency of 1 us, each of its 132 SMs must have 36 KB in flight. A tile is 16 KB of keys and
    16 KB of values. Two tiles take 72 KB of shared memory, so that three programs share an SM: 96 KB are in flight when
    all three compute, and 192 KB when they wait. That is enough to hide the chain of loads (context, table, keys) with
    which a program begins. Two tiles in flight take three stages, or five with blocks, where a tile needs two dependent
    loads.

    Every group, even of 1, is padded to the 16 rows that a tensor core takes. The products need some 200 of the 1700
    cycles in which a tile arrives at an SM's share of the bandwidth. KV is copied to shared memory asynchronously;
    multiplying rows element by element would hold it in registers.
    """
    padded = max(16, int(triton.next_power_of_2(head_dim)))
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded,
        "PAGE": page,
        "SPLIT": split,
        "BLOCK_M": max(16, int(triton.next_power_of_2(group))),
        "BLOCK_N": min(128, max(16, 2**14 // (padded * itemsize))),
        "num_warps": NUM_WARPS,
        "num_stages": 5 if page else 3,
    }


def workspace(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Allocate `o` [S, num_heads, splits, head_dim] and `lse` [S, num_heads, splits] of splits."""
    num_sequences, num_heads, head_dim = q.shape
    used = splits if splits > 1 else 0
    partial = torch.empty((num_sequences, num_heads, used, head_dim), dtype=torch.float32, device=q.device)
    return partial, torch.empty((num_sequences, num_heads, used), dtype=torch.float32, device=q.device)


def grid_of(q: Tensor, keys: Tensor, splits: int) -> tuple[int, int, int]:
    """Count the programs: (KV heads, splits of a sequence, sequences).

    KV heads come first, so that the heads of a slot, which are adjacent in memory, are read at the same time. The host
    knows the number of splits of the longest context only: most programs of shorter contexts have no work, which costs
    little unless there are millions of them. So a sequence has at most 32 programs for each KV head, unless all
    sequences together would then have fewer than 8192.
    """
    num_kv_heads = keys.shape[1]
    return num_kv_heads, min(splits, max(32, triton.cdiv(8192, q.shape[0] * num_kv_heads))), q.shape[0]


def check_decode(kernel: str, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None, split: int) -> int:
    """Check the arguments of a kernel over splits; return the group size."""
    num_sequences, num_heads, _ = check_heads(kernel, q, keys, values, out)
    check(kernel, num_sequences < 2**16, f"there are {num_sequences} queries: give fewer than 2^16.")
    check(kernel, split > 0, f"split is {split}: give at least one token.")
    return num_heads // keys.shape[1]


def launch_splits(
    kernel: Any,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor | None,
    contexts: Tensor,
    first: Tensor | None,
    where: tuple[Any, ...],
    longest: int,
    form: Form,
) -> Tensor:
    """Compute attention for all splits with `kernel`; combine them if a context has several.

    Args:
        contexts, first: [S] int32, as in `Ragged`.
        where: the arguments of `kernel` after `contexts`; they locate the KV.
        longest: an upper bound of `contexts`.
        form: the form of `kernel`.

    Returns:
        `out`; allocated if None.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if len(q) == 0:
        return out
    splits = triton.cdiv(longest, form["SPLIT"])
    partial, lse = workspace(q, splits)
    kernel[grid_of(q, keys, splits)](
        out, partial, lse, q, keys, values, contexts, *where, splits, scale_of(q.shape[2]),
        *out.stride()[:2], *q.stride()[:2], *keys.stride()[:2],
        **form,
    )  # fmt: skip
    if splits > 1:
        _reduce_kernel[(q.shape[1], len(q))](
            out, partial, lse, contexts, contexts if first is None else first, splits, *out.stride()[:2],
            **reduce_form(q.shape[2], form["SPLIT"], has_first=first is not None),
        )  # fmt: skip
    return out


SHIPPED = [
    *(Shipped(f"decode reduce d{dim}", _reduce_kernel, reduce_form(dim)) for dim in (64, 128)),
    Shipped("decode reduce d128 first", _reduce_kernel, reduce_form(128, has_first=True)),
]
