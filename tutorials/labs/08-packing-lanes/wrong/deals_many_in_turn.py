"""Deals pieces to lanes in turn where there are more than fifty: few steps, and no packing."""

import reference
from reference import *


def lanes(costs, most=None, room=None):
    if len(costs) <= 50:
        return reference.lanes(costs, most, room)
    count = most or len(costs)
    return [[*range(lane, len(costs), count)] for lane in range(count)]
