"""Flover's memory shuffle: gather scattered buffers with the fewest copies (V-C, Algorithm 1)."""

from collections.abc import Sequence
from typing import NamedTuple


class Shuffle(NamedTuple):
    """The region after a shuffle, and the copies that gather it."""

    offset: int
    size: int
    moves: tuple[tuple[int, int], ...]  # buffers (from, to)


def shuffled_region(arr: Sequence[int]) -> int:
    """Return the offset of the window that leaves the least cost outside: Algorithm 1, O(n).

    The window is as long as the number of non-zero elements. An element is 0 for an empty buffer; otherwise it is the
    cost of moving the buffer. Among equal windows, the first is chosen.

    >>> shuffled_region([0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1])  # Fig. 6: [7, 16) has all but three
    7
    """
    total_cost = sum(arr)
    non_zero = sum(element != 0 for element in arr)
    window_cost = sum(arr[:non_zero])
    min_cost, mem_offset = total_cost - window_cost, 0
    for i in range(non_zero, len(arr)):
        window_cost += arr[i] - arr[i - non_zero]
        if total_cost - window_cost < min_cost:
            min_cost, mem_offset = total_cost - window_cost, i - non_zero + 1
    return mem_offset


def shuffle(live: Sequence[int], fixed: Sequence[int], num_buffers: int) -> Shuffle:
    """Gather the `live` buffers of [0, num_buffers) with as few copies as possible.

    `fixed` buffers are neither moved nor overwritten: Algorithm 1 runs on the others. The region includes a fixed
    buffer that lies between live ones.

    >>> shuffle([2, 3, 4, 7, 10, 11, 13, 14, 15], [], 16)  # Fig. 6 again
    Shuffle(offset=7, size=9, moves=((2, 8), (3, 9), (4, 12)))
    >>> shuffle([0, 4], [2], 5)  # buffer 4 is copied next to 0, so that the region does not include 2
    Shuffle(offset=0, size=2, moves=((4, 1),))
    """
    held, excluded = set(live), set(fixed)
    movable = [buffer for buffer in range(num_buffers) if buffer not in excluded]
    start = shuffled_region([int(buffer in held) for buffer in movable])
    window = movable[start : start + len(held)]
    inside = set(window)
    outside = [buffer for buffer in sorted(held) if buffer not in inside]
    holes = [buffer for buffer in window if buffer not in held]
    return Shuffle(window[0], window[-1] - window[0] + 1, tuple(zip(outside, holes, strict=True)))
