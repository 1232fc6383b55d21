"""Decode over split KV (FlashDecoding): the whole GPU reads one query's context.

A decode batch has no more rows than sequences, too few to fill a GPU, and contexts of very uneven lengths. So contexts
are cut into splits, as `splits.py` describes; here KV lies in blocks or in consecutive slots.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Shipped, check
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.splits import SPLIT, attend_splits, check_decode, launch_splits, split_form, visible_range

KERNEL = "decode_attention"


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
    stride_table,
    splits,
    scale,
    stride_os,
    stride_oh,
    stride_qs,
    stride_qh,
    stride_slot,
    stride_kv_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Each program attends to one split (seldom more) of one sequence, under one KV head."""
    sequence = tl.program_id(2)
    begin, end = visible_range(contexts_ptr, first_ptr, sequence, HAS_FIRST)
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


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, split: int = SPLIT
) -> Tensor:
    """Compute attention for the last token of S contexts, over paged or contiguous KV.

    Args:
        q: [S, num_heads, head_dim], one query per sequence.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        ragged: the slots of each context; `max_queries` is 1, and every context has at least one token.
        out: like `q`; allocated if None.
        split: tokens in a split. The result's bits depend on it, but not on the other sequences, on
            `ragged.max_context`, or on the blocks of the KV.

    Returns:
        `out`, [S, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: the arguments do not fit together.
    """
    group = check_decode(KERNEL, q, keys, values, out, split)
    _check_single(q, ragged)
    ragged.check(KERNEL, q, keys)
    has_first = ragged.first is not None
    form = split_form(group, q.shape[2], ragged.page, split, q.element_size()) | {"HAS_FIRST": has_first}
    where = (ragged.first_or_contexts, ragged.tables, ragged.tables.stride(0))
    return launch_splits(
        _decode_kernel, q, keys, values, out, ragged.contexts, ragged.first, where, ragged.max_context, form
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
    form = split_form(group, head_dim, page) | {"HAS_FIRST": has_first}
    return Shipped(f"decode d{head_dim} g{group} page{page}" + " first" * has_first, _decode_kernel, form)


SHIPPED = [
    *(_shipped(group, dim, page) for page in (16, 0) for dim in (64, 128) for group in (1, 4, 8)),
    _shipped(4, 128, 0, has_first=True),
]
