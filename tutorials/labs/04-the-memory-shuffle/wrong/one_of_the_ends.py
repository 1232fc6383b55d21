"""Gathers in the first or in the last window that is allowed, whichever takes fewer copies."""

from reference import *


def moves(live, stays):
    count, size = sum(live), len(live)
    starts = [one for one in range(size - count + 1) if stays is None or one <= stays < one + count]
    plans = []
    for begin in (starts[0], starts[-1]):
        outside = [i for i in range(size) if live[i] and not begin <= i < begin + count]
        plans.append(list(zip(outside, [i for i in range(begin, begin + count) if not live[i]])))
    return min(plans, key=len)
