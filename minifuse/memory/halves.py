"""Waves in the two halves of a device that layers have in turn (FluidInfer, 4.1)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def even_waves(needs: Sequence[int], num_blocks: int) -> int:
    """The fewest blocks for a wave with which work is divided into an even number of waves, of half of the device each.

    While the last wave of a layer is attended, the first of the next layer is uploaded to the other half. If the work
    cannot be divided so, as where a piece needs more than half, into any number.

    >>> even_waves([3, 3, 2, 2, 2], 12)  # twelve blocks at once, in two waves: 3 + 3 and 2 + 2 + 2
    6
    >>> even_waves([3, 3, 2, 2, 2], 10)  # four waves: 3, 3, 2 + 2 and 2
    4
    """
    half = max(*needs, num_blocks // 2)
    num_waves = 2 * max(1, -(-sum(needs) // (2 * half)))
    while num_waves <= len(needs):
        limits = range(half + 1)
        limit = bisect_left(limits, -num_waves, lo=max(needs), key=lambda limit: -_num_waves(needs, limit))
        if limit <= half and _num_waves(needs, limit) == num_waves:
            return limit
        num_waves += 2
    return half


def _num_waves(needs: Sequence[int], limit: int) -> int:
    """Waves of up to `limit` blocks that work is cut into in its order."""
    count = taken = 0
    for blocks in needs:
        if not count or taken + blocks > limit:
            count, taken = count + 1, 0
        taken += blocks
    return count
