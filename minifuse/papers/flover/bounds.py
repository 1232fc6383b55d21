"""Bounds what the memory shuffle can gain, by what an iteration costs in proportion to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minifuse.core.request import Request


def row_bound(requests: Sequence[Request]) -> float:
    """Bound the gain of the shuffle if an iteration costs as much as its rows.

    All requests arrive at once.

    >>> f"{row_bound([Request('r0', (0,), max_new_tokens=2), Request('r1', (0,), max_new_tokens=4)]):.3f}"  # 8 for 6
    '1.333'
    """
    lengths = [request.max_new_tokens for request in requests]
    return len(lengths) * max(lengths) / sum(lengths)


def kv_bound(requests: Sequence[Request]) -> float:
    """Bound the gain of the shuffle if an iteration costs as much as its KV.

    All requests arrive at once, and each row is read up to the longest context.

    >>> ends = [Request("r0", (0,), max_new_tokens=2), Request("r1", (0,), max_new_tokens=4)]
    >>> f"{kv_bound(ends):.3f}"  # contexts of 2 (1 + 2 + 3 + 4) for 2 (1 + 2) + 3 + 4
    '1.538'
    """
    contexts = [
        request.max_new_tokens * (2 * len(request.prompt) + request.max_new_tokens - 1) / 2 for request in requests
    ]
    return len(contexts) * max(contexts) / sum(contexts)


BOUNDS: Mapping[str, Callable[[Sequence[Request]], float]] = {"row_bound": row_bound, "kv_bound": kv_bound}
