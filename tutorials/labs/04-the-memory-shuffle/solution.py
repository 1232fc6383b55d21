"""Lab 4: the memory shuffle.

`live` tells of each buffer, from left to right, whether a running request has it. All functions get and return plain
data: lists and whole numbers.
"""


def window_offset(live: list[bool]) -> int:
    """Where the shuffle gathers the live buffers: the first buffer of the best window.

    A window has as many buffers as are live. The best one leaves the fewest live ones outside; of equal windows it is
    the leftmost.

    >>> window_offset([False, True, False, True, True])
    1
    """
    # BEGIN SOLUTION: find the window with one walk over the buffers
    count = sum(live)
    inside = most = sum(live[:count])
    offset = 0
    for stop in range(count, len(live)):
        inside += live[stop] - live[stop - count]
        if inside > most:
            most, offset = inside, stop - count + 1
    return offset
    # END SOLUTION


def moves(live: list[bool]) -> list[tuple[int, int]]:
    """The copies that gather the live buffers in that window: pairs (from, to), both in increasing order.

    >>> moves([False, True, False, True, True])
    [(4, 2)]
    """
    # BEGIN SOLUTION: which live buffers lie outside, and which places inside are free?
    begin = window_offset(live)
    window = range(begin, begin + sum(live))
    outside = [buffer for buffer, taken in enumerate(live) if taken and buffer not in window]
    return list(zip(outside, [place for place in window if not live[place]]))
    # END SOLUTION


def two_windows(live: list[bool], price: int) -> list[tuple[int, int]]:
    """Open task: up to two windows, [(offset, size), ...], that have room for all live buffers.

    A copy costs 1 for each live buffer outside of both windows. A free place inside a window that is not needed costs
    `price`, for it is computed in every iteration until the next shuffle. A second window costs `2 * price`, for it
    needs kernels of its own. This is one window, as above. Do better.

    >>> two_windows([True, False, True], 2)
    [(0, 2)]
    """
    return [(window_offset(live), sum(live))]
