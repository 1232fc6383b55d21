"""The ragged batch: queries of any lengths, and their KV slots (Pensieve, 3.4.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from minifuse.kernels.launch import INTEGERS, check, check_tensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """The queries of S sequences, concatenated, and the KV slots of each sequence's context.

    Sequence s has the query rows [cu_seqlens[s], cu_seqlens[s + 1]). They are the last tokens of its context of
    `contexts[s]` tokens, and each attends to itself and to the tokens before it. Token t of the context lies in slot
    `tables[s, t // page] * page + t % page`; or, with `page` 0, in slot `tables[s, 0] + t`: the sequence is contiguous.

    >>> # a decodes its 6th token, b prefills 3; blocks of 4 slots, a's in 7 and 2, b's in 5:
    >>> # cu_seqlens [0, 1, 4], contexts [6, 3], tables [[7, 2], [5, -1]], page 4
    >>> # row 0 reads a's tokens 0..5 in slots 28..31, 8, 9; rows 1, 2, 3 read b's first 1, 2, 3 tokens, in slots 20..22

    A row of a padded rectangle is a sequence whose context begins with empty columns. With `first`, a query in column c
    attends to the columns [first[s], c], and always to itself.
    """

    cu_seqlens: Tensor  # [S + 1] int32, exclusive prefix sum of the numbers of queries
    contexts: Tensor  # [S] int32, tokens up to and including the last query
    tables: Tensor  # [S, columns] int32, block numbers; page 0: [S, 1], first slots. Unused entries are -1
    page: int  # slots in a block; 0: contiguous
    max_queries: int  # of one sequence
    max_context: int
    first: Tensor | None = None  # [S] int32

    def slots(self, sequence: int, tokens: Tensor) -> Tensor:
        """Find the slots of `tokens` [n] of one sequence's context."""
        table = self.tables[sequence]
        if self.page == 0:
            return table[0] + tokens
        return table[tokens // self.page] * self.page + tokens % self.page

    @property
    def first_or_contexts(self) -> Tensor:
        """Return `first`; if it is None, return a tensor that kernels then do not read."""
        return self.contexts if self.first is None else self.first

    def check(self, kernel: str, q: Tensor, keys: Tensor) -> None:
        """Check shapes and types; on a CPU, also check values (a GPU would synchronise).

        Raises:
            KernelError: the batch does not fit the queries or the storage.
        """
        num_sequences, columns = self.contexts.shape[0], self.tables.shape[-1]
        check_tensor(kernel, "contexts", self.contexts, (None,), INTEGERS, q.device, contiguous=True)
        check_tensor(kernel, "cu_seqlens", self.cu_seqlens, (num_sequences + 1,), INTEGERS, q.device, contiguous=True)
        check_tensor(kernel, "tables", self.tables, (num_sequences, None), INTEGERS, q.device)
        if self.first is not None:
            check_tensor(kernel, "first", self.first, (num_sequences,), INTEGERS, q.device, contiguous=True)
        check(kernel, self.page >= 0, f"page is {self.page}: give the slots in a block, or 0 for contiguous sequences.")
        reach = columns * self.page if self.page else min(columns, 1) * len(keys)
        longest = self.max_context
        message = f"a context has {longest} tokens and the tables reach {reach} of them: give wider tables."
        check(kernel, longest <= reach, message)
        if q.device.type == "cpu":
            queries = self.cu_seqlens.diff()
            whole = int(self.cu_seqlens[-1]) == len(q) and bool((queries >= 0).all())
            check(kernel, whole, f"cu_seqlens are {self.cu_seqlens.tolist()} and q has {len(q)} rows: make them agree.")
            bounded = num_sequences == 0 or int(self.contexts.max()) <= longest
            check(kernel, bounded, f"a context is longer than max_context, which is {longest}: raise it.")
            enough = bool((self.contexts >= queries).all())
            check(
                kernel, enough, "a context has fewer tokens than its sequence has queries: count the queries in it too."
            )


def check_heads(kernel: str, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None) -> tuple[int, int, int]:
    """Check that queries, storage and output fit together; return the shape of `q`."""
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


def scale_of(head_dim: int) -> float:
    """Return the scale of scores in units of log 2: log2(e) / sqrt(head_dim)."""
    return math.log2(math.e) / math.sqrt(head_dim)
