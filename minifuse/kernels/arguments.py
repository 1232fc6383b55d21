"""Argument checks shared by the attention launchers: queries, one layer's storage, and the ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.kernels.launch import check, check_tensor
from minifuse.kernels.ragged import Ragged

INTEGERS = (torch.int32,)


def check_heads(kernel: str, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None) -> tuple[int, int, int]:
    """Check that the queries, the storage and the output fit together; return the shape of `q`."""
    check_tensor(kernel, "q", q, (None, None, None))
    num_rows, num_heads, head_dim = q.shape
    check_tensor(kernel, "keys", keys, (None, None, head_dim), (q.dtype,), q.device)
    check_tensor(kernel, "values", values, keys.shape, (q.dtype,), q.device)
    same = keys.stride() == values.stride()
    check(kernel, same, f"keys have the strides {keys.stride()} and values {values.stride()}: give them the same.")
    slots, num_kv_heads, _ = keys.shape
    fits = num_kv_heads > 0 and num_heads % num_kv_heads == 0
    check(kernel, fits, f"there are {num_heads} heads and {num_kv_heads} KV heads: give a multiple of the KV heads.")
    check(kernel, slots < 2**31, f"there are {slots} slots: give fewer than 2^31.")
    if out is not None:
        check_tensor(kernel, "out", out, q.shape, (q.dtype,), q.device)
    return num_rows, num_heads, head_dim


def check_ragged(kernel: str, q: Tensor, keys: Tensor, ragged: Ragged) -> None:
    """Check shapes and types, and on a CPU the values too: on a GPU, reading them would wait for the device."""
    num_sequences, columns = ragged.contexts.shape[0], ragged.tables.shape[-1]
    check_tensor(kernel, "contexts", ragged.contexts, (None,), INTEGERS, q.device, contiguous=True)
    check_tensor(kernel, "cu_seqlens", ragged.cu_seqlens, (num_sequences + 1,), INTEGERS, q.device, contiguous=True)
    check_tensor(kernel, "tables", ragged.tables, (num_sequences, None), INTEGERS, q.device)
    if ragged.first is not None:
        check_tensor(kernel, "first", ragged.first, (num_sequences,), INTEGERS, q.device, contiguous=True)
    check(kernel, ragged.page >= 0, f"page is {ragged.page}: give the slots in a block, or 0 for contiguous sequences.")
    reach = columns * ragged.page if ragged.page else min(columns, 1) * len(keys)
    longest = ragged.max_context
    message = f"a context has {longest} tokens and the tables reach {reach} of them: give wider tables."
    check(kernel, longest <= reach, message)
    if q.device.type == "cpu":
        queries = ragged.cu_seqlens.diff()
        whole = int(ragged.cu_seqlens[-1]) == len(q) and bool((queries >= 0).all())
        check(kernel, whole, f"cu_seqlens are {ragged.cu_seqlens.tolist()} and q has {len(q)} rows: make them agree.")
        bounded = num_sequences == 0 or int(ragged.contexts.max()) <= longest
        check(kernel, bounded, f"a context is longer than max_context, which is {longest}: raise it.")
        enough = bool((ragged.contexts >= queries).all())
        check(kernel, enough, "a context has fewer tokens than its sequence has queries: count the queries in it too.")
