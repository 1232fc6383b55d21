"""Decode over adjacent buffers: offset, size and lengths, no block table (Flover, V-B, Fig. 4).

All buffers have the same width and are adjacent, so token t of row i's context lies in slot

    (offset + i) width + t,   t < lengths[i]

>>> # offset 2, size 3, width 10, lengths [5, 1, 7]: the rows read the slots 20..24, 30 and 40..46

Everything else, such as the splits of long contexts, is as in split_kv.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import INTEGERS, Shipped, check, check_tensor
from minifuse.kernels.multi_token import multi_token_attention_torch
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.splits import SPLIT, attend_splits, check_decode, launch_splits, split_form

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
    """Each program attends to one split (seldom more) of one buffer, under one KV head."""
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
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, *, offset: int, size: int, width: int
) -> Tensor:
    """Compute `slots_attention` in PyTorch: each buffer is a sequence in consecutive slots."""
    tables = torch.arange(offset, offset + size, device=q.device)[:, None] * width
    ragged = Ragged(torch.arange(size + 1), lengths, tables, page=0, max_queries=1, max_context=width)
    return multi_token_attention_torch(q, keys, values, ragged)


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
    """Compute attention for one query in each of the buffers [offset, offset + size).

    Args:
        q: [size, num_heads, head_dim], row i is the query of buffer offset + i.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        lengths: [size] int32, how many tokens of each buffer its query attends to, at least 1.
        offset, size: the paper's buffer_offset and buffer_size, counted in buffers.
        width: slots of a buffer.
        max_length: an upper bound of `lengths`, by default `width`. The tighter it is, the fewer programs have no work.
        out: like `q`; allocated if None.
        split: tokens in a split; see `decode_attention`.

    Returns:
        `out`, [size, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: the arguments do not fit together.
    """
    group = check_decode(KERNEL, q, keys, values, out, split)
    longest = width if max_length is None else max_length
    check_tensor(KERNEL, "lengths", lengths, (size,), INTEGERS, q.device, contiguous=True)
    check(KERNEL, q.shape[0] == size, f"size is {size} and there are {q.shape[0]} queries: give one query per buffer.")
    count = keys.shape[0] // width if width > 0 else 0
    check(
        KERNEL,
        width > 0 and offset >= 0 and offset + size <= count,
        f"the buffers are [{offset}, {offset + size}) of {width} slots, and there are {count}: stay within them.",
    )
    check(KERNEL, 0 < longest <= width, f"max_length is {longest}: give a length that a buffer of {width} slots holds.")
    form = split_form(group, q.shape[2], 0, split, q.element_size())
    return launch_splits(_slots_kernel, q, keys, values, out, lengths, None, (offset, width), longest, form)


SHIPPED = [
    Shipped(f"slots d{dim} g{group}", _slots_kernel, split_form(group, dim, 0))
    for dim in (64, 128)
    for group in (1, 4, 8)
]
