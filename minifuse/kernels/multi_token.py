"""Multi-token attention: any number of queries per sequence, over KV that lies in pages or in one piece.

One kernel serves prefill, chunks, decode and what Pensieve (3.4.4) recomputes in the middle of a context, because they
differ in one number only: how many of a context's last tokens are queries. A program takes BLOCK_Q queries of one
sequence and all heads that share one KV head, as the BLOCK_M >= BLOCK_Q x group rows of one matrix, so that a key is
read once for all of them; it walks the context in tiles of BLOCK_N tokens with a softmax that is corrected as it goes:

    m' = max(m, max(s)),   p = 2^(s - m'),   l' = l 2^(m - m') + sum(p),   acc' = acc 2^(m - m') + p V,   out = acc / l

with s = q k / sqrt(head_dim) in units of log 2. Tiles that every row sees whole need no mask and come first: the
masked ones are the few on the diagonal.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.arguments import check_heads, check_ragged
from minifuse.kernels.launch import Shipped
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.tile import dot, slot_of, sum_rows, tile_owner

__all__ = ["SHIPPED", "multi_token_attention", "multi_token_attention_torch"]

KERNEL = "multi_token_attention"


@triton.jit
def _walk(
    acc,  # [BLOCK_M, HEAD_DIM_PADDED]
    total,  # [BLOCK_M], l above
    peak,  # [BLOCK_M], m above
    q,  # [BLOCK_M, HEAD_DIM_PADDED]
    position,  # [BLOCK_M], each row's place in the context
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
    """Attend the tokens [begin, end), tile by tile. Unless `MASKED`, they fill the tiles and all rows see them."""
    dim = tl.arange(0, HEAD_DIM_PADDED)
    real = tl.full([HEAD_DIM_PADDED], True, tl.int1)  # what is true everywhere costs nothing: the mask disappears
    if HEAD_DIM < HEAD_DIM_PADDED:
        real = dim < HEAD_DIM
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        held = tl.full([BLOCK_N], True, tl.int1)
        if MASKED:
            held = token < end
        slot = slot_of(tables_ptr, table_offset, token, PAGE, held)
        offsets = slot[:, None] * stride_slot + dim[None, :]
        mask = held[:, None] & real[None, :]
        k = tl.load(keys_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(values_ptr + offsets, mask=mask, other=0.0)

        scores = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        scores = dot(q, tl.trans(k), scores, HEAD_DIM_PADDED, IN_ORDER)
        if MASKED:
            seen = token[None, :] <= position[:, None]
            if HAS_FIRST:
                seen = seen & ((token >= first)[None, :] | (token[None, :] == position[:, None]))
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
        shift = new_peak
        if MASKED and HAS_FIRST:  # a row may not have seen anything yet
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        p = tl.math.exp2(tl.fma(scores, scale, -shift[:, None]))
        shrink = tl.math.exp2(peak - shift)
        total = tl.fma(total, shrink, sum_rows(p, BLOCK_N, IN_ORDER))
        if not IN_ORDER:
            p = p.to(v.dtype)
        acc = dot(p, v, acc * shrink[:, None], BLOCK_N, IN_ORDER)
        peak = new_peak
    return acc, total, peak


@triton.jit(do_not_specialize=["num_sequences", "stride_table"])
def _multi_token_kernel(
    out_ptr,  # [T, num_heads, head_dim]
    q_ptr,  # [T, num_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,  # [slots, num_kv_heads, head_dim]
    cu_seqlens_ptr,  # [S + 1]
    contexts_ptr,  # [S]
    first_ptr,  # [S], read if HAS_FIRST
    tables_ptr,  # [S, columns]
    num_sequences,
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
    """One program: BLOCK_M // GROUP queries of one sequence, under one KV head."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a chunk's last queries see most: they start first
    kv_head = tl.program_id(1).to(tl.int64)
    sequence = tile_owner(cu_seqlens_ptr, tile, num_sequences, BLOCK_Q)
    begins = tl.load(cu_seqlens_ptr + sequence)
    num_queries = tl.load(cu_seqlens_ptr + sequence + 1) - begins
    query = (tile - begins // BLOCK_Q - sequence) * BLOCK_Q  # the tile's first one, of this sequence's
    if query >= num_queries:
        return
    position = tl.load(contexts_ptr + sequence) - num_queries + query
    end = position + tl.minimum(BLOCK_Q, num_queries - query)
    first = 0
    if HAS_FIRST:
        first = tl.load(first_ptr + sequence)

    row = tl.arange(0, BLOCK_M)  # row r is query r // GROUP of the tile, under head r % GROUP of the group
    dim = tl.arange(0, HEAD_DIM_PADDED)
    mask = (row // GROUP < end - position)[:, None] & (dim < HEAD_DIM)[None, :]
    token = (begins + query).to(tl.int64)
    q_ptr += token * stride_qt + kv_head * GROUP * stride_qh
    q = tl.load(
        q_ptr + (row // GROUP * stride_qt + row % GROUP * stride_qh)[:, None] + dim[None, :], mask=mask, other=0.0
    )

    # Tiles are counted from `first`. All rows see those in [first, masked) whole. The idle queries of a rectangle, in
    # columns before `first`, see themselves alone: a tile that has some begins with their columns. (To reference mode
    # that is the same, as BLOCK_Q <= BLOCK_N: what such a tile's real queries see is one tile, counted either way.)
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


def multi_token_attention_torch(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, reference: bool = False
) -> Tensor:
    """The same in PyTorch, a sequence at a time: what `multi_token_attention` means. Float16 and bfloat16 go by way of
    float32; `reference` changes nothing.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    exact = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // keys.shape[1]
    for s, (begin, end) in enumerate(pairwise(ragged.cu_seqlens.tolist())):
        column = torch.arange(int(ragged.contexts[s]), device=q.device)
        row = column[len(column) - (end - begin) :, None]
        seen = column <= row
        if ragged.first is not None:
            seen &= (column >= ragged.first[s]) | (column == row)
        if ragged.page:
            slots = ragged.tables[s, column // ragged.page] * ragged.page + column % ragged.page
        else:
            slots = ragged.tables[s, 0] + column
        k, v = (kv[slots].to(exact).repeat_interleave(group, 1) for kv in (keys, values))
        v = v.masked_fill(~seen.any(0)[:, None, None], 0.0)  # such a slot may hold anything, and 0 x NaN is NaN
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(exact), k) / math.sqrt(q.shape[2])
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
    return out


def multi_token_attention(
    q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, out: Tensor | None = None, *, reference: bool = False
) -> Tensor:
    """Causal attention of the last tokens of S contexts, over KV in pages or in one piece.

    Args:
        q: [T, num_heads, head_dim], the queries of all sequences, concatenated.
        keys, values: [slots, num_kv_heads, head_dim], one layer's storage, with the same strides; `num_heads` is a
            multiple of `num_kv_heads`.
        ragged: whose the queries are, and in which slots each context lies.
        out: like `q`; made if not given.
        reference: slower, and the bits of a query's row depend on its context alone: not on how the context is cut into
            chunks, where it lies, or who else is in the batch. (Every tile has the same size and is masked, and all
            sums run in the order of the context.) A left-padded row gets the bits of an unpadded one.

    Returns:
        `out`, [T, num_heads, head_dim]: softmax(q k / sqrt(head_dim)) v.

    Raises:
        KernelError: what is given does not fit together.
    """
    num_tokens, num_heads, head_dim = check_heads(KERNEL, q, keys, values, out)
    check_ragged(KERNEL, q, keys, ragged)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    num_sequences, num_kv_heads = ragged.contexts.shape[0], keys.shape[1]
    if num_tokens == 0:
        return out
    constants, num_warps, num_stages = _form(
        num_heads // num_kv_heads,
        head_dim,
        ragged.page,
        ragged.max_queries,
        has_first=ragged.first is not None,
        itemsize=q.element_size(),
        reference=reference,
    )
    block_q = constants["BLOCK_M"] // constants["GROUP"]
    _multi_token_kernel[(num_tokens // block_q + num_sequences, num_kv_heads)](
        out,
        q,
        keys,
        values,
        ragged.cu_seqlens,
        ragged.contexts,
        ragged.contexts if ragged.first is None else ragged.first,
        ragged.tables,
        num_sequences,
        math.log2(math.e) / math.sqrt(head_dim),
        out.stride(0),
        out.stride(1),
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        ragged.tables.stride(0),
        **constants,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


def _form(
    group: int,
    head_dim: int,
    page: int,
    max_queries: int,
    *,
    has_first: bool = False,
    itemsize: int = 2,
    reference: bool = False,
) -> tuple[dict[str, int], int, int]:
    """The kernel's constants, and its number of warps and of stages."""
    padded = max(16, int(triton.next_power_of_2(head_dim)))
    if reference:
        block_m, block_n, num_warps, num_stages = REFERENCE
    else:
        block_m, block_n, num_warps, num_stages = _config(group * max_queries, padded, itemsize, page)
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded,
        "PAGE": page,
        "HAS_FIRST": has_first,
        "IN_ORDER": reference,
        "BLOCK_M": max(block_m, int(triton.next_power_of_2(group))),
        "BLOCK_N": block_n,
    }
    return constants, num_warps, num_stages


def _config(max_rows: int, head_dim_padded: int, itemsize: int, page: int) -> tuple[int, int, int, int]:
    """BLOCK_M, BLOCK_N, num_warps and num_stages for sequences of at most `max_rows` = queries x group rows.

    Reckoned from what is compiled ahead of time, not measured:

    - Up to 16 rows (decode): the least a tensor core takes. The work is reading KV, and three programs fit on an SM.
    - More (chunks): at half of the peak, 128 rows ask the L2 for 16 bytes a clock and SM; 64 rows would ask for 32, and
      it has about 24. 8 warps are two warp groups: one multiplies while the other takes its softmax. 64 tokens a tile
      take 183 registers at head_dim 128 (sm_80: 227), 128 tokens spill on sm_80; at head_dim 64 two programs fit.
    - Few rows in a large tile, a decode beside a chunk, waste multiplications but hide them behind the reading.
    - A head_dim above 128 halves the tile, to fit shared memory and registers.
    - Float32 is not for speed: tiles of 32 by 16 are the largest that spill nothing on either target at head_dim 128.

    Stages: three tiles in flight, because on Hopper a copy that is waited for one tile later overlaps with nothing.
    With pages a tile is two loads deep, the table's and then its own, and the same takes five.
    """
    num_stages = 5 if page else 3
    small = head_dim_padded > 128
    if itemsize > 2:
        return 16 if small or max_rows <= 16 else 32, 16, 4, 3
    if max_rows <= 16:
        return 16, 32 if small else 64, 4, num_stages
    return 64 if small else 128, 32 if small else 64, 8, num_stages


REFERENCE = 16, 16, 4, 1  # one tile for every length: the tiles' boundaries are part of the result's bits


def _shipped(
    group: int, head_dim: int, page: int, queries: int, *, has_first: bool = False, reference: bool = False
) -> Shipped:
    constants, num_warps, num_stages = _form(group, head_dim, page, queries, has_first=has_first, reference=reference)
    signature = dict.fromkeys(("out_ptr", "q_ptr", "keys_ptr", "values_ptr"), "*bf16")
    signature |= dict.fromkeys(("cu_seqlens_ptr", "contexts_ptr", "first_ptr", "tables_ptr"), "*i32")
    signature |= {"num_sequences": "i32", "scale": "fp32"}
    signature |= dict.fromkeys((name for name in _multi_token_kernel.arg_names if name.startswith("stride_")), "i32")
    name = f"multi_token d{head_dim} g{group} page{page} " + ("decode" if queries == 1 else "chunk")
    name += " first" * has_first + " reference" * reference
    return Shipped(name, _multi_token_kernel, signature, constants, num_warps, num_stages)


SHIPPED: tuple[Shipped, ...] = (
    *(_shipped(group, dim, 16, queries) for dim in (64, 128) for group in (1, 4, 8) for queries in (1, 2048)),
    *(_shipped(1, 256, 16, queries) for queries in (1, 2048)),  # GPT-J
    *(_shipped(4, 128, 0, queries) for queries in (1, 2048)),
    _shipped(4, 128, 0, 2048, has_first=True),
    *(_shipped(4, 128, page, 2048, reference=True) for page in (0, 16)),
)
