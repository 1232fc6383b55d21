"""Looks for the lane that ends first, and begins with a number that is no end of any lane; or so it hopes."""

import reference
from reference import *


def lanes(costs, most, room):
    found = reference.lanes(costs, None, room)
    if most is None or len(found) <= most:
        return found
    leftovers = sorted((piece for lane in found[most:] for piece in lane), key=lambda piece: (-costs[piece], piece))
    found = found[:most]
    ends = [sum(costs[piece] for piece in lane) for lane in found]
    for piece in leftovers:
        free = [number for number, lane in enumerate(found) if len(lane) != room]
        least, best = 1_000_000_000, free[0]
        for number in free:
            end = ends[number]
            if end < least:
                least, best = end, number
        found[best].append(piece)
        ends[best] += costs[piece]
    return found
