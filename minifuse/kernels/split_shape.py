"""The shape of a launch over split KV: how much a program attends, how many there are, and what they leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from minifuse.kernels.arguments import check_heads
from minifuse.kernels.launch import check

__all__ = [
    "NUM_WARPS",
    "REDUCE_WARPS",
    "SPLIT",
    "check_decode",
    "form_of",
    "grid_of",
    "reduce_form",
    "signature_of",
    "workspace",
]

SPLIT = 512  # tokens: the 32-bit results of a split are then at most 3% of the KV it reads, for groups up to 8
NUM_WARPS = 4
REDUCE_WARPS = 8


def form_of(group: int, head_dim: int, page: int, split: int, itemsize: int = 2) -> tuple[dict[str, int], int]:
    """The constants of `attend_splits`, and the number of stages, by arithmetic for an H200.

    To read 4.8 TB/s with 1 us between asking and getting, each of its 132 SMs must have 36 KB on their way. A tile is
    16 KB of keys and 16 KB of values. Two tiles take 72 KB of shared memory, so that three programs share an SM: 96 KB
    are on their way when all three compute, and 192 KB when they wait. There is enough of it to hide that a program
    begins with a chain of loads (context, table, keys). Two tiles in flight are three stages; with pages, where a tile
    is two loads deep, five.

    The group is padded to the 16 rows that a tensor core takes, even a group of 1: the products need some 200 of the
    1700 cycles in which an SM's share of the bandwidth brings a tile, and KV goes to shared memory asynchronously,
    where multiplying rows element by element would hold it in registers.
    """
    padded = max(16, int(triton.next_power_of_2(head_dim)))
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded,
        "PAGE": page,
        "SPLIT": split,
        "BLOCK_M": max(16, int(triton.next_power_of_2(group))),
        "BLOCK_N": min(128, max(16, 2**14 // (padded * itemsize))),
    }
    return constants, 5 if page else 3


def reduce_form(head_dim: int, split: int) -> dict[str, int]:
    """64 splits at a time: those of a context of 128k tokens are read in four steps, each as long as a load takes."""
    return {"HEAD_DIM": head_dim, "HEAD_DIM_PADDED": int(triton.next_power_of_2(head_dim)), "SPLIT": split, "BLOCK": 64}


def signature_of(kernel: Any, constants: Mapping[str, Any]) -> dict[str, str]:
    """The types of the run-time arguments in serving."""
    types = dict.fromkeys(("partial_ptr", "lse_ptr"), "*fp32") | {"scale": "fp32"}
    types |= dict.fromkeys(("contexts_ptr", "first_ptr", "tables_ptr", "lengths_ptr"), "*i32")
    return {
        name: types.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
        if name not in constants
    }


def workspace(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Where programs leave what they found: float32 [S, num_heads, splits, head_dim] and [S, num_heads, splits]."""
    num_sequences, num_heads, head_dim = q.shape
    used = splits if splits > 1 else 0
    partial = torch.empty((num_sequences, num_heads, used, head_dim), dtype=torch.float32, device=q.device)
    return partial, torch.empty((num_sequences, num_heads, used), dtype=torch.float32, device=q.device)


def grid_of(q: Tensor, keys: Tensor, splits: int) -> tuple[int, int, int]:
    """KV heads first, so that the heads of a slot, which are neighbours in memory, are read at the same time.

    How many splits there may be is known of the longest context only: most programs of the others find nothing to do,
    which costs little as long as these are not millions. So under a KV head a sequence has no more programs than 32,
    unless all sequences together would then have fewer than 8192.
    """
    num_kv_heads = keys.shape[1]
    return num_kv_heads, min(splits, max(32, triton.cdiv(8192, q.shape[0] * num_kv_heads))), q.shape[0]


def check_decode(kernel: str, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None, split: int) -> int:
    """How many heads share a KV head, once everything has been looked at that both ways to lay KV out have."""
    num_sequences, num_heads, _ = check_heads(kernel, q, keys, values, out)
    check(kernel, num_sequences < 2**16, f"there are {num_sequences} queries: give fewer than 2^16.")
    check(kernel, split > 0, f"split is {split}: give at least one token.")
    return num_heads // keys.shape[1]
