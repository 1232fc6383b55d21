"""The ragged batch of multi-token attention (Pensieve, 3.4.4): queries of any lengths, and the slots of their KV."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """The queries of S sequences, concatenated, and the KV slots of each sequence's context.

    Sequence s has the query rows [cu_seqlens[s], cu_seqlens[s + 1]). They are the last tokens of its context of
    `contexts[s]` tokens, and each attends to itself and to the tokens before it. Token t of the context lies in slot
    `tables[s, t // page] * page + t % page`; or, with `page` 0, in slot `tables[s, 0] + t`: the sequence is contiguous.

    >>> # a decodes its 6th token, b prefills 3; blocks of 4 slots, a's in 7 and 2, b's in 5:
    >>> # cu_seqlens [0, 1, 4], contexts [6, 3], tables [[7, 2], [5, -1]], page 4
    >>> # row 0 reads a's tokens 0..5 in slots 28..31, 8, 9; rows 1, 2, 3 read b's first 1, 2, 3 tokens, in slots 20..22

    A row of a padded rectangle is a sequence too, whose context begins with empty columns: with `first`, a query in
    column c attends to the columns [first[s], c], and always to itself.
    """

    cu_seqlens: Tensor  # [S + 1] int32, exclusive prefix sum of the numbers of queries
    contexts: Tensor  # [S] int32, tokens up to and including the last query
    tables: Tensor  # [S, columns] int32, block numbers; page 0: [S, 1], first slots. Unused entries are -1
    page: int  # slots in a block; 0: contiguous
    max_queries: int  # of one sequence
    max_context: int
    first: Tensor | None = None  # [S] int32

    def slots(self, sequence: int, tokens: Tensor) -> Tensor:
        """The slots of `tokens` [n] of one sequence's context."""
        table = self.tables[sequence]
        if self.page == 0:
            return table[0] + tokens
        return table[tokens // self.page] * self.page + tokens % self.page
