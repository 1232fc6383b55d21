"""Divides what is left over in the order of arrival."""

import reference
from reference import *


def lanes(costs, most, room):
    found = reference.lanes(costs, None, room)
    if most is None or len(found) <= most:
        return found
    leftovers, found = sorted(piece for lane in found[most:] for piece in lane), found[:most]
    ends = [sum(costs[piece] for piece in lane) for lane in found]
    for piece in leftovers:
        number = min((one for one in range(most) if len(found[one]) != room), key=lambda one: ends[one])
        found[number].append(piece)
        ends[number] += costs[piece]
    return found
