"""Decode over adjacent buffers: the kernel takes an offset, a size and lengths, no block table (Flover, V-B, Fig. 4).

All buffers have the same width and are adjacent, so token t of the context of row i of the batch lies in slot

    (offset + i) width + t,   t < lengths[i]

>>> # offset 2, size 3, width 10, lengths [5, 1, 7]: the rows read the slots 20..24, 30 and 40..46

The rest of a program, and the splits of long contexts, are those of split_kv.py.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Shipped, check, check_tensor
from minifuse.kernels.split_shape import NUM_WARPS, SPLIT, check_decode, form_of, grid_of, signature_of, workspace
from minifuse.kernels.splits import attend_one_torch, attend_splits, reduce_splits

KERNEL = "slots_attention"


@triton.jit(do_not_specialize=["offset", "width", "splits"])
def _slots_kernel(
    out_ptr,  # [size, num_heads, head_dim]
    partial_ptr,  # [size, num_heads, splits, head_dim], written for contexts of more than SPLIT tokens
    lse_ptr,  # [size, num_heads, splits]
    q_ptr,  # [size, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,
    lengths_ptr,  # [size]
    offset,
    width,
    splits,
    scale,  # log2(e) / sqrt(head_dim)
    stride_os,
    stride_oh,
    stride_qs,
    stride_qh,
    stride_slot,
    stride_kv_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr,  # 0
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: one KV head, and one split (seldom more) of one buffer."""
    row = tl.program_id(2)
    length = tl.load(lengths_ptr + row)
    if tl.program_id(1) * SPLIT >= length:
        return
    first_slot = (offset + row).to(tl.int64) * width
    keys_ptr += first_slot * stride_slot
    values_ptr += first_slot * stride_slot
    attend_splits(
        out_ptr, partial_ptr, lse_ptr, q_ptr, keys_ptr, values_ptr, lengths_ptr, row, 0, length, splits, scale,
        stride_os, stride_oh, stride_qs, stride_qh, stride_slot, stride_kv_head,
        GROUP, HEAD_DIM, HEAD_DIM_PADDED, PAGE, SPLIT, BLOCK_M, BLOCK_N,
    )  # fmt: skip


def slots_attention_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    offset: int,
    size: int,
    width: int,
    max_length: int | None = None,
    out: Tensor | None = None,
    split: int = SPLIT,
) -> Tensor:
    """`slots_attention` in PyTorch, one buffer at a time and unsplit. Float16 and bfloat16 are computed in float32;
    `max_length` and `split` have no effect.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    exact = torch.promote_types(q.dtype, torch.float32)
    for row in range(size):
        first = (offset + row) * width
        k, v = (kv[first : first + int(lengths[row])].to(exact) for kv in (keys, values))
        out[row] = attend_one_torch(q[row].to(exact), k, v).to(out.dtype)
    return out


def slots_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    offset: int,
    size: int,
    width: int,
    max_length: int | None = None,
    out: Tensor | None = None,
    split: int = SPLIT,
) -> Tensor:
    """Attention of one query in each of the adjacent buffers [offset, offset + size) to the tokens of its buffer.

    Args:
        q: [size, num_heads, head_dim], row i the query of buffer offset + i.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        lengths: [size] int32, tokens of each buffer that its query attends to, at least 1.
        offset, size: the paper's buffer_offset and buffer_size, counted in buffers.
        width: slots of a buffer.
        max_length: no length is greater; None: `width`. The closer the bound, the fewer programs have no work.
        out: like `q`; allocated if None.
        split: as in `decode_attention`.

    Returns:
        `out`, [size, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: the arguments do not fit together.
    """
    group = check_decode(KERNEL, q, keys, values, out, split)
    longest = width if max_length is None else max_length
    check_tensor(KERNEL, "lengths", lengths, (size,), (torch.int32,), q.device, contiguous=True)
    check(KERNEL, q.shape[0] == size, f"size is {size} and there are {q.shape[0]} queries: give one query per buffer.")
    count = keys.shape[0] // width if width > 0 else 0
    check(
        KERNEL,
        width > 0 and offset >= 0 and offset + size <= count,
        f"the buffers are [{offset}, {offset + size}) of {width} slots, and there are {count}: stay within them.",
    )
    check(KERNEL, 0 < longest <= width, f"max_length is {longest}: give a length that a buffer of {width} slots holds.")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if size == 0:
        return out
    splits = triton.cdiv(longest, split)
    partial, lse = workspace(q, splits)
    constants, num_stages = form_of(group, q.shape[2], 0, split, q.element_size())
    _slots_kernel[grid_of(q, keys, splits)](
        out,
        partial,
        lse,
        q,
        keys,
        values,
        lengths,
        offset,
        width,
        splits,
        math.log2(math.e) / math.sqrt(q.shape[2]),
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:2],
        **constants,
        num_warps=NUM_WARPS,
        num_stages=num_stages,
    )
    reduce_splits(out, partial, lse, lengths, None, split)
    return out


def _shipped(group: int, head_dim: int) -> Shipped:
    constants, num_stages = form_of(group, head_dim, 0, SPLIT)
    signature = signature_of(_slots_kernel, constants)
    return Shipped(f"slots d{head_dim} g{group}", _slots_kernel, signature, constants, NUM_WARPS, num_stages)


SHIPPED: tuple[Shipped, ...] = tuple(_shipped(group, dim) for dim in (64, 128) for group in (1, 4, 8))
