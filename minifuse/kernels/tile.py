"""What attention kernels share: slots of a table, a tile's sequence, ordered products."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slot_of(tables_ptr, row_offset, token, PAGE: tl.constexpr, mask=None):
    """Find the slots of tokens; their block table begins at `tables_ptr + row_offset`.

        PAGE > 0: slot = table[token // PAGE] * PAGE + token % PAGE
        PAGE = 0: slot = table[0] + token

    >>> # table [7, 2], PAGE 4: tokens 0, 3, 5 -> slots 28, 31, 9

    Entries of tokens that `mask` excludes are not read. A slot fits 32 bits, but its product with a stride needs 64;
    widening in a product is one instruction.
    """
    if PAGE == 0:
        slot = tl.load(tables_ptr + row_offset) + token
    else:
        block = tl.load(tables_ptr + row_offset + token // PAGE, mask=mask)
        slot = block * PAGE + token % PAGE
    return slot.to(tl.int64)


@triton.jit
def tile_owner(cu_seqlens_ptr, tile, num_sequences, BLOCK_Q: tl.constexpr):
    """Find the sequence of a query tile by bisection.

    Sequence s owns the tiles from cu_seqlens[s] // BLOCK_Q + s up to the first tile of sequence s + 1: as many as its
    queries need, or one more. So the size of the grid, T // BLOCK_Q + S, is known without reading cu_seqlens back from
    the device.

    >>> # BLOCK_Q 4, queries 6, 0, 3, cu_seqlens [0, 6, 6, 9]: the tiles begin at 0, 2, 3 and end at 5;
    >>> # tile 2 (of sequence 1) and tile 4 (the second one of sequence 2) are empty
    """
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        begins = tl.load(cu_seqlens_ptr + middle) // BLOCK_Q + middle
        if begins <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def dot(a, b, acc, K: tl.constexpr, IN_ORDER: tl.constexpr):
    """Compute acc [M, N] + a [M, K] @ b [K, N].

    With `IN_ORDER`, it adds in float32, one k after the other, by explicit fused multiply-adds. So the bits depend only
    on the operands, not on the tile's layout or on what a compiler contracts.
    """
    if IN_ORDER:
        a = a.to(tl.float32)
        b = tl.trans(b.to(tl.float32))
        index = tl.arange(0, K)[None, :]
        for k in range(K):  # column k of each, exactly: it is summed with zeros
            a_k = tl.sum(tl.where(index == k, a, 0.0), 1)
            b_k = tl.sum(tl.where(index == k, b, 0.0), 1)
            acc = tl.fma(a_k[:, None], b_k[None, :], acc)
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def sum_rows(a, K: tl.constexpr, IN_ORDER: tl.constexpr):
    """Sum every row of `a` [M, K], with `IN_ORDER` from left to right."""
    if IN_ORDER:
        total = tl.zeros([a.shape[0]], tl.float32)
        for k in range(K):
            total += tl.sum(tl.where(tl.arange(0, K)[None, :] == k, a, 0.0), 1)
    else:
        total = tl.sum(a, 1)
    return total
