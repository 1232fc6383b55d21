"""Packed attention (FluidInfer, 4.2): each program walks a lane of the host's work lists.

A lane is a list of sequences. A program takes one lane and one KV head, and attends to the lane's sequences one after
the other. For each sequence it takes the queries tile by tile, as `multi_token` does. So a program with short pieces of
work goes on with the next piece, which would otherwise take another program. The kernel takes as long as its longest
lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import INTEGERS, Shipped, check, check_tensor
from minifuse.kernels.multi_token import attend_tile
from minifuse.kernels.multi_token_shape import packed_form_of
from minifuse.kernels.ragged import Ragged, check_heads, scale_of

KERNEL = "packed_attention"


@dataclass(frozen=True, slots=True)
class WorkLists:
    """The sequences of each lane: lane i attends to `sequences[starts[i]:starts[i + 1]]`, in this order.

    >>> # lanes (1,), (0, 2) of three sequences: starts [0, 1, 3], sequences [1, 0, 2]
    """

    starts: Tensor  # [lanes + 1] int32
    sequences: Tensor  # [S] int32, each sequence of the batch once


@triton.jit(do_not_specialize=["stride_table"])
def _packed_kernel(
    out_ptr,  # [T, num_heads, head_dim]
    q_ptr,  # [T, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,  # [slots, num_kv_heads, head_dim]
    cu_seqlens_ptr,  # [S + 1]
    contexts_ptr,  # [S]
    tables_ptr,  # [S, columns]
    starts_ptr,  # [lanes + 1]
    sequences_ptr,  # [S]
    scale,  # log2(e) / sqrt(head_dim)
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Each program computes attention for one lane, under one KV head."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    lane = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    for index in range(tl.load(starts_ptr + lane), tl.load(starts_ptr + lane + 1)):
        sequence = tl.load(sequences_ptr + index)
        begins = tl.load(cu_seqlens_ptr + sequence)
        num_queries = tl.load(cu_seqlens_ptr + sequence + 1) - begins
        context = tl.load(contexts_ptr + sequence)
        for query in range(0, num_queries, BLOCK_Q):
            attend_tile(
                out_ptr, q_ptr, keys_ptr, values_ptr, tables_ptr,
                sequence, context, 0, begins, num_queries, query, kv_head, scale,
                stride_ot, stride_oh, stride_qt, stride_qh, stride_slot, stride_kv_head, stride_table,
                GROUP, HEAD_DIM, HEAD_DIM_PADDED, PAGE, False, False, BLOCK_M, BLOCK_N,
            )  # fmt: skip


def packed_attention(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, lists: WorkLists, out: Tensor | None = None
) -> Tensor:
    """Compute the same as `multi_token_attention`, lane by lane.

    The result does not depend on which lane a sequence is in.

    Args:
        q: [T, num_heads, head_dim], the queries of all sequences, concatenated.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides.
        ragged: the sequence of each query, and the slots of each context; `first` must be None.
        lists: which sequences each lane attends to.
        out: like `q`; allocated if None.

    Returns:
        `out`, [T, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: the arguments do not fit together.
    """
    num_tokens, num_heads, head_dim = check_heads(KERNEL, q, keys, values, out)
    ragged.check(KERNEL, q, keys)
    check(KERNEL, ragged.first is None, "contexts begin with empty columns (first): give them to multi_token.")
    _check_lists(q, ragged, lists)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if num_tokens == 0:
        return out
    num_kv_heads = keys.shape[1]
    group, itemsize = num_heads // num_kv_heads, q.element_size()
    _packed_kernel[(len(lists.starts) - 1, num_kv_heads)](
        out, q, keys, values,
        ragged.cu_seqlens, ragged.contexts, ragged.tables, lists.starts, lists.sequences, scale_of(head_dim),
        *out.stride()[:2], *q.stride()[:2], *keys.stride()[:2], ragged.tables.stride(0),
        **packed_form_of(group, head_dim, ragged.page, ragged.max_queries, itemsize=itemsize),
    )  # fmt: skip
    return out


def _check_lists(q: Tensor, ragged: Ragged, lists: WorkLists) -> None:
    """Check work lists; on a CPU, also check that each sequence is in one lane."""
    num_sequences = len(ragged.contexts)
    check_tensor(KERNEL, "starts", lists.starts, (None,), INTEGERS, q.device, contiguous=True)
    check_tensor(KERNEL, "sequences", lists.sequences, (num_sequences,), INTEGERS, q.device, contiguous=True)
    check(KERNEL, len(lists.starts) > 1 or not num_sequences, "there are no lanes: give at least one.")
    if q.device.type == "cpu":
        starts, sequences = lists.starts.tolist(), lists.sequences.tolist()
        whole = not num_sequences or (starts[0] == 0 and starts[-1] == num_sequences and starts == sorted(starts))
        check(KERNEL, whole, f"the lanes begin at {starts} in {num_sequences} sequences: give each to one lane.")
        once = sorted(sequences) == list(range(num_sequences))
        check(KERNEL, once, f"the lanes hold the sequences {sequences} of {num_sequences}: give each once.")


def _shipped(group: int, head_dim: int, page: int, queries: int) -> Shipped:
    name = f"packed d{head_dim} g{group} page{page} " + ("decode" if queries == 1 else "chunk")
    return Shipped(name, _packed_kernel, packed_form_of(group, head_dim, page, queries))


SHIPPED = [
    *(_shipped(group, dim, 16, queries) for dim in (64, 128) for group in (1, 4, 8) for queries in (1, 2048)),
    _shipped(4, 128, 0, 2048),
]
