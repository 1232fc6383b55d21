"""The shape of a launch over split KV: tiles and stages, grid, and the workspace for the results of splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from minifuse.kernels.arguments import check_heads
from minifuse.kernels.launch import check

SPLIT = 512  # tokens: the 32-bit results of a split are then at most 3% of the KV it reads, for groups up to 8
NUM_WARPS = 4
REDUCE_WARPS = 8


def form_of(group: int, head_dim: int, page: int, split: int, itemsize: int = 2) -> tuple[dict[str, int], int]:
    """The constants of `attend_splits`, and the number of stages, by arithmetic for an H200.

    To read 4.8 TB/s at a latency of 1 us, each of its 132 SMs must have 36 KB in flight. A tile is 16 KB of keys and
    16 KB of values. Two tiles take 72 KB of shared memory, so that three programs share an SM: 96 KB are in flight when
    all three compute, and 192 KB when they wait. That is enough to hide the chain of loads (context, table, keys) with
    which a program begins. Two tiles in flight are three stages; with blocks, where a tile is two loads deep, five.

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
    """For the results of splits, in float32: [S, num_heads, splits, head_dim] and [S, num_heads, splits]."""
    num_sequences, num_heads, head_dim = q.shape
    used = splits if splits > 1 else 0
    partial = torch.empty((num_sequences, num_heads, used, head_dim), dtype=torch.float32, device=q.device)
    return partial, torch.empty((num_sequences, num_heads, used), dtype=torch.float32, device=q.device)


def grid_of(q: Tensor, keys: Tensor, splits: int) -> tuple[int, int, int]:
    """Programs: (KV heads, splits of a sequence, sequences).

    KV heads come first, so that the heads of a slot, which are adjacent in memory, are read at the same time. The host
    knows the number of splits of the longest context only: most programs of shorter contexts have no work, which costs
    little unless they are millions. So a sequence has at most 32 programs for each KV head, unless all sequences
    together would then have fewer than 8192.
    """
    num_kv_heads = keys.shape[1]
    return num_kv_heads, min(splits, max(32, triton.cdiv(8192, q.shape[0] * num_kv_heads))), q.shape[0]


def check_decode(kernel: str, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None, split: int) -> int:
    """Check the arguments that both kernels over splits take; return the number of heads that share a KV head."""
    num_sequences, num_heads, _ = check_heads(kernel, q, keys, values, out)
    check(kernel, num_sequences < 2**16, f"there are {num_sequences} queries: give fewer than 2^16.")
    check(kernel, split > 0, f"split is {split}: give at least one token.")
    return num_heads // keys.shape[1]
