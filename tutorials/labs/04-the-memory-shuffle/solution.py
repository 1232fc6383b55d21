"""Lab 4: the memory shuffle.

`live` tells of each buffer, from left to right, whether a running request has it. `stays` is a live buffer that may not
be copied, or None. All functions get and return plain data: lists and whole numbers.
"""


def window_offset(live: list[bool], stays: int | None) -> int:
    """Where the shuffle gathers the live buffers: the first buffer of the best window.

    A window has as many buffers as are live, and the one that stays is among them. The best one leaves the fewest live
    ones outside; of equal windows it is the leftmost.

    >>> window_offset([True, False, False, True, True], None)
    2
    >>> window_offset([True, False, False, True, True], 0)
    0
    """
    # BEGIN SOLUTION: find the window with one walk over the buffers
    count = sum(live)
    first, last = 0, len(live) - count
    if stays is not None:
        first, last = max(first, stays - count + 1), min(last, stays)
    inside = most = sum(live[first : first + count])
    offset = first
    for begin in range(first + 1, last + 1):
        inside += live[begin + count - 1] - live[begin - 1]
        if inside > most:
            most, offset = inside, begin
    return offset
    # END SOLUTION


def moves(live: list[bool], stays: int | None) -> list[tuple[int, int]]:
    """The copies that gather the live buffers in a best window, any of equal ones: pairs (from, to), both increasing.

    >>> moves([True, False, False, True, True], None)
    [(0, 2)]
    >>> moves([True, False, False, True, True], 0)
    [(3, 1), (4, 2)]
    """
    # BEGIN SOLUTION: which live buffers lie outside, and which places inside are free?
    begin = window_offset(live, stays)
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
    return [(window_offset(live, None), sum(live))]
