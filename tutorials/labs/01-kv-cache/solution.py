"""Lab 1: a KV cache.

All functions get and return plain data: numbers and lists. Inside you may use numpy.
"""

import numpy as np


def missing(length: int, written: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of tokens of [0, length) whose keys and values are not written, in order, as few as possible.

    `written` are spans [start, stop) in any order. They may overlap or touch, and none is empty or ends after `length`.

    >>> missing(12, [(6, 9), (0, 4)])
    [(4, 6), (9, 12)]
    """
    # BEGIN SOLUTION: walk over the written spans in order, and note the gaps between them
    gaps, reached = [], 0
    for start, stop in sorted(written):
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, stop)
    if reached < length:
        gaps.append((reached, length))
    return gaps
    # END SOLUTION


class KVCache:
    """The keys and values of one text in one layer: empty at first.

    >>> cache = KVCache(num_kv_heads=1, head_dim=2)
    >>> cache.append([[[1.0, 0.0]], [[1.0, 0.0]]], [[[3.0, 4.0]], [[5.0, 6.0]]])  # two tokens
    >>> cache.attend([[[7.0, 0.0]]])  # the second token's query: both keys are alike, so both values weigh the same
    [[[4.0, 5.0]]]
    """

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        # BEGIN SOLUTION: what is kept of an empty text?
        self.keys = np.zeros((0, num_kv_heads, head_dim))
        self.values = np.zeros((0, num_kv_heads, head_dim))
        # END SOLUTION

    def append(self, keys: list[list[list[float]]], values: list[list[list[float]]]) -> None:
        """Keep the next tokens' keys and values: `keys[token][kv_head]` is a list of head_dim numbers."""
        # BEGIN SOLUTION: append them to what is kept
        self.keys = np.concatenate([self.keys, np.array(keys, float)])
        self.values = np.concatenate([self.values, np.array(values, float)])
        # END SOLUTION

    def attend(self, queries: list[list[list[float]]]) -> list[list[list[float]]]:
        """The attention of the last tokens that were appended, of which `queries[token][head]` are the queries.

        Token i of the text attends to the tokens 0 to i. The number of heads is a multiple of the number of KV heads,
        and consecutive heads share a KV head. The value is like `queries`.
        """
        # BEGIN SOLUTION: scores, hide later tokens, softmax, weigh the values
        q = np.array(queries, float)
        count, heads, dim = q.shape
        length, kv_heads = self.keys.shape[:2]
        grouped = q.reshape(count, kv_heads, heads // kv_heads, dim)
        scores = np.einsum("tkgd,skd->tkgs", grouped, self.keys) / np.sqrt(dim)
        hidden = np.arange(length)[None, :] > np.arange(length - count, length)[:, None]
        scores = self.hide(scores, hidden[:, None, None, :])
        weights = self.exponentials(scores)
        weights = weights / weights.sum(-1, keepdims=True)
        return np.einsum("tkgs,skd->tkgd", weights, self.values).reshape(q.shape).tolist()
        # END SOLUTION

    # BEGIN SOLUTION
    def hide(self, scores, hidden):
        return np.where(hidden, -np.inf, scores)

    def exponentials(self, scores):
        return np.exp(scores - scores.max(-1, keepdims=True))

    # END SOLUTION


class Keeper:
    """Open task: a cache with room for `size` tokens. After each new token it says which of the kept ones to drop.

    This one keeps the last `size` tokens. Do better.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def drop(self, kept: list[int], weights: list[float]) -> int:
        """The number of the token to drop; it never returns.

        `kept` are the numbers of the `size` + 1 tokens that are in the cache, in order, the newest last. `weights` are
        the newest token's attention to each of them, and sum to 1.

        >>> Keeper(2).drop([0, 3, 4], [0.7, 0.1, 0.2])
        0
        """
        return kept[0]
