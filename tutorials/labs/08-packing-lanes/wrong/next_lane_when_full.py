"""Where the lane that ends first has no place, takes the next that has one, whatever its end."""

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
        number = ends.index(min(ends))
        while len(found[number]) == room:
            number = (number + 1) % most
        found[number].append(piece)
        ends[number] += costs[piece]
    return found
