"""Decides which sequences stay on the device, and how large waves are (FluidInfer, 4.1).

All sizes are in blocks. `needs` lists the sizes of the pieces of work, in order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def staying_and_wave(needs: Sequence[int], num_blocks: int, least: int, any_stays: bool) -> tuple[int, int]:
    """Return how many leading pieces stay on the device, and the others' wave size.

    The other pieces take turns in waves. A wave must have room for the longest of these pieces. As many pieces stay as
    leave room for two such waves; none stays if two waves do not fit.

    >>> staying_and_wave([2, 1, 2, 2, 1, 1], 8, 0, any_stays=True)  # two stay, as 3 + 2 x 2 <= 8
    (2, 2)

    Args:
        least: the minimum size of a wave.
        any_stays: whether pieces may stay; otherwise all take turns.
    """
    held = list(accumulate(needs, initial=0))
    # For each piece: the size of a wave if this piece and all behind it take turns.
    buffers = list(accumulate(reversed(needs), max, initial=least))[::-1]
    staying = 0
    while any_stays and staying + 1 < len(needs) and held[staying + 1] + 2 * buffers[staying + 1] <= num_blocks:
        staying += 1
    return staying, min(buffers[staying], num_blocks - held[staying])


def even_waves(needs: Sequence[int], num_blocks: int) -> int:
    """Return the smallest wave size that gives an even number of waves.

    Waves use the two halves of the device by turns: while the last wave of a layer is attended, the first of the next
    layer is uploaded to the other half. If no even number is possible (for example, if a piece needs more than half),
    the wave size is half of the device, or the longest piece if that is larger.

    >>> even_waves([3, 3, 2, 2, 2], 12)  # two waves: 3 + 3 and 2 + 2 + 2
    6
    >>> even_waves([3, 3, 2, 2, 2], 10)  # four waves: 3, 3, 2 + 2 and 2
    4
    """
    half = max(*needs, num_blocks // 2)
    fewest = _num_waves(needs, half)
    for num_waves in range(fewest + fewest % 2, len(needs) + 1, 2):
        limits = range(half + 1)
        limit = bisect_left(limits, -num_waves, lo=max(needs), key=lambda limit: -_num_waves(needs, limit))
        if _num_waves(needs, limit) == num_waves:
            return limit
    return half


def _num_waves(needs: Sequence[int], limit: int) -> int:
    """Count the waves of at most `limit` blocks that hold the pieces, in order."""
    count = taken = 0
    for blocks in needs:
        if not count or taken + blocks > limit:
            count, taken = count + 1, 0
        taken += blocks
    return count
