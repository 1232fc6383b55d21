"""Copies KV within the storage (shuffle, block copy), or to a staging buffer (swap).

All these copies are bound by bandwidth and work alike. A token's keys in one layer are ROW = num_kv_heads x head_dim
adjacent elements, as are its values, and a program copies a tile of both with wide loads. The loads of values are
issued before the stores of keys, which wait for the loads of keys.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Form, Shipped, check, check_tensor

BLOCK = 4096  # elements of keys and as many of values: with 256 threads, four loads of 16 bytes in flight per thread
BLOCK_R = 1024  # elements of one row, in a tile of several rows
NUM_WARPS = 8


@triton.jit
def _move_kernel(
    keys_ptr,  # [num_layers, slots, ROW]
    values_ptr,  # [num_layers, slots, ROW]
    pieces_ptr,  # [pieces, 3]: source, target, length, in units of UNIT elements
    stride_kl,
    stride_vl,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program copies one piece of one move, in one layer.

    The elements of a move are adjacent for any ROW. Offsets are multiples of UNIT, which lets the compiler load 16
    bytes at once.
    """
    piece = pieces_ptr + tl.program_id(0).to(tl.int64) * 3
    layer = tl.program_id(1).to(tl.int64)
    source = tl.load(piece) * UNIT
    target = tl.load(piece + 1) * UNIT
    element = tl.arange(0, BLOCK)
    mask = element < tl.load(piece + 2) * UNIT
    keys_ptr += layer * stride_kl
    values_ptr += layer * stride_vl
    keys = tl.load(keys_ptr + source + element, mask=mask)
    values = tl.load(values_ptr + source + element, mask=mask)
    tl.store(keys_ptr + target + element, keys, mask=mask)
    tl.store(values_ptr + target + element, values, mask=mask)


@triton.jit(do_not_specialize=["n"])
def _stage_kernel(
    staging_ptr,  # [2, num_layers, n, ROW]
    keys_ptr,  # [num_layers, slots, ROW]
    values_ptr,  # [num_layers, slots, ROW]
    slots_ptr,  # [n]
    n,
    stride_kl,
    stride_ks,
    stride_vl,
    stride_vs,
    ROW: tl.constexpr,
    GATHER: tl.constexpr,  # copies from the storage to staging; otherwise back
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Each program copies BLOCK_R elements of the rows of BLOCK_T tokens, in one layer."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    element = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    layer = tl.program_id(2).to(tl.int64)
    num_layers = tl.num_programs(2)
    mask = (token < n)[:, None] & (element < ROW)[None, :]
    slot = tl.load(slots_ptr + token, mask=token < n, other=0)
    keys_ptr += layer * stride_kl + slot[:, None] * stride_ks + element[None, :]
    values_ptr += layer * stride_vl + slot[:, None] * stride_vs + element[None, :]
    staged_keys_ptr = staging_ptr + (layer * n + token)[:, None] * ROW + element[None, :]
    staged_values_ptr = staging_ptr + ((num_layers + layer) * n + token)[:, None] * ROW + element[None, :]
    if GATHER:
        keys = tl.load(keys_ptr, mask=mask)
        values = tl.load(values_ptr, mask=mask)
        tl.store(staged_keys_ptr, keys, mask=mask)
        tl.store(staged_values_ptr, values, mask=mask)
    else:
        keys = tl.load(staged_keys_ptr, mask=mask)
        values = tl.load(staged_values_ptr, mask=mask)
        tl.store(keys_ptr, keys, mask=mask)
        tl.store(values_ptr, values, mask=mask)


def _move_form(row: int) -> Form:
    """Choose UNIT, a divisor of all offsets: at most 16, for the widest load."""
    return {"UNIT": math.gcd(row, 16), "BLOCK": BLOCK, "num_warps": NUM_WARPS}


def _stage_form(row: int, gather: bool) -> Form:
    block_r = min(triton.next_power_of_2(row), BLOCK_R)
    return {"ROW": row, "GATHER": gather, "BLOCK_T": BLOCK // block_r, "BLOCK_R": block_r, "num_warps": NUM_WARPS}


def _check_storage(kernel: str, keys: Tensor, values: Tensor) -> int:
    """Check that each token's row is contiguous; return its number of elements."""
    check_tensor(kernel, "keys", keys, [None, None, None, None])
    check_tensor(kernel, "values", values, keys.shape, [keys.dtype], keys.device)
    for name, kv in (("keys", keys), ("values", values)):
        adjacent = keys.shape[2] == 1 or kv.stride(2) == keys.shape[3]
        check(kernel, adjacent, f"{name} has the strides {kv.stride()}: the heads of a token must lie side by side.")
    return keys.shape[2] * keys.shape[3]


# Moves within the storage.


def move_slots_torch(keys: Tensor, values: Tensor, moves: Sequence[tuple[int, int, int]]) -> None:
    """Do `move_slots` in torch."""
    for source, target, num_tokens in moves:
        for kv in (keys, values):
            kv[:, target : target + num_tokens] = kv[:, source : source + num_tokens]


def move_slots(keys: Tensor, values: Tensor, moves: Sequence[tuple[int, int, int]]) -> None:
    """Copy ranges of slots to other slots, in every layer, in one launch.

    Args:
        keys, values: [num_layers, slots, num_kv_heads, head_dim], each layer contiguous; both are written.
        moves: (source, target, num_tokens): slots [source, source + num_tokens) go to [target, target + num_tokens).
            All moves happen at once, so no target may overlap another target or any source.

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    row = _check_storage("move_slots", keys, values)
    slots = keys.shape[1]
    for name, kv in (("keys", keys), ("values", values)):
        dense = slots <= 1 or kv.stride(1) == row
        check("move_slots", dense, f"{name} has the strides {kv.stride()}: slots must lie side by side in a layer.")
    moves = [move for move in moves if move[2] != 0]
    for source, target, num_tokens in moves:
        inside = num_tokens > 0 and min(source, target) >= 0 and max(source, target) + num_tokens <= slots
        message = f"{num_tokens} slots go from {source} to {target} and there are {slots}: stay within them."
        check("move_slots", inside, message)
    check("move_slots", disjoint(moves), f"{moves} overlap: do one move after the other.")
    if not moves or keys.numel() == 0:
        return
    form = _move_form(row)
    pieces = _pieces(moves, row // form["UNIT"], BLOCK // form["UNIT"])
    if keys.device.type == "cuda":  # from pinned memory the copy does not block the host
        pieces = pieces.pin_memory().to(keys.device, non_blocking=True)
    _move_kernel[(pieces.shape[0], keys.shape[0])](keys, values, pieces, keys.stride(0), values.stride(0), **form)


def disjoint(moves: Sequence[tuple[int, int, int]]) -> bool:
    """Tell whether all moves may happen at once: no target overlaps another or a source."""
    targets = sorted((target, target + num_tokens) for _, target, num_tokens in moves)
    ends = [end for _, end in targets]
    for source, _, num_tokens in moves:
        index = bisect_right(ends, source)  # the first target that ends after the source begins
        if index < len(targets) and targets[index][0] < source + num_tokens:
            return False
    return all(end <= begin for (_, end), (begin, _) in pairwise(targets))


def _pieces(moves: Sequence[tuple[int, int, int]], units: int, most: int) -> Tensor:
    """Cut moves into pieces of at most `most` units: [pieces, 3] int64.

    >>> _pieces([(0, 5, 3)], 2, 4).tolist()  # 6 units from 0 to 10
    [[0, 10, 4], [4, 14, 2]]
    """
    runs = torch.tensor(moves, dtype=torch.int64) * units  # source, target, length
    counts = (runs[:, 2] + most - 1) // most
    starts = counts.cumsum(0) - counts  # [moves], the first piece of each
    done = (torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)) * most
    source, target, length = runs.repeat_interleave(counts, 0).unbind(1)
    return torch.stack((source + done, target + done, (length - done).clamp(max=most)), 1)


# Between the storage and a staging buffer.


def gather_slots_torch(keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    """Do `gather_slots` in torch."""
    return torch.stack((keys[:, slots], values[:, slots]))


def gather_slots(keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    """Gather the KV of slots into one buffer, to be swapped out.

    Args:
        keys, values: [num_layers, slots, num_kv_heads, head_dim], a token's heads side by side.
        slots: [n] int64, each within the storage (not checked: their values are on the device).

    Returns:
        Keys, then values, a new tensor [2, num_layers, n, num_kv_heads, head_dim].

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    row = _check_storage("gather_slots", keys, values)
    check_tensor("gather_slots", "slots", slots, [None], [torch.int64], keys.device, contiguous=True)
    num_layers, _, num_kv_heads, head_dim = keys.shape
    staging = keys.new_empty((2, num_layers, slots.shape[0], num_kv_heads, head_dim))
    _stage(staging, keys, values, slots, row, gather=True)
    return staging


def scatter_slots_torch(staging: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Do `scatter_slots` in torch."""
    keys[:, slots], values[:, slots] = staging


def scatter_slots(staging: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write a buffer, laid out as by `gather_slots`, into slots to swap them in.

    Args:
        staging: [2, num_layers, n, num_kv_heads, head_dim], contiguous, on the device.
        keys, values: [num_layers, slots, num_kv_heads, head_dim], a token's heads side by side; both are written.
        slots: [n] int64, each within the storage and all different (not checked, as in `gather_slots`).

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    row = _check_storage("scatter_slots", keys, values)
    check_tensor("scatter_slots", "slots", slots, [None], [torch.int64], keys.device, contiguous=True)
    num_layers, _, num_kv_heads, head_dim = keys.shape
    shape = [2, num_layers, slots.shape[0], num_kv_heads, head_dim]
    check_tensor("scatter_slots", "staging", staging, shape, [keys.dtype], keys.device, contiguous=True)
    _stage(staging, keys, values, slots, row, gather=False)


def _stage(staging: Tensor, keys: Tensor, values: Tensor, slots: Tensor, row: int, *, gather: bool) -> None:
    if staging.numel() == 0:
        return
    form = _stage_form(row, gather)
    n = slots.shape[0]
    grid = (triton.cdiv(n, form["BLOCK_T"]), triton.cdiv(row, form["BLOCK_R"]), keys.shape[0])
    _stage_kernel[grid](staging, keys, values, slots, n, *keys.stride()[:2], *values.stride()[:2], **form)


WIDE = {"pieces_ptr": "*i64", "stride_kl": "i64", "stride_vl": "i64"}  # a layer may span more than 2^31 elements

SHIPPED = [
    # 8 KV heads of 128; any row that is a multiple of 16 compiles to the same.
    Shipped("move_slots row1024", _move_kernel, _move_form(1024), WIDE),
    *(
        Shipped(f"{'gather' if gather else 'scatter'}_slots row{row}", _stage_kernel, _stage_form(row, gather), WIDE)
        for row in (768, 1024)
        for gather in (True, False)
    ),
]
