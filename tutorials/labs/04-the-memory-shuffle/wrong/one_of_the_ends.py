"""Gathers at the left or the right end of memory, whichever takes fewer copies."""

from reference import *


def moves(live):
    count, size = sum(live), len(live)
    plans = []
    for begin in (0, size - count):
        outside = [i for i in range(size) if live[i] and not begin <= i < begin + count]
        plans.append(list(zip(outside, [i for i in range(begin, begin + count) if not live[i]])))
    return min(plans, key=len)
