"""Opens lanes with the longest piece, and fills them with the first that fits; large waves aside."""

import reference
from reference import *


def lanes(costs, most, room):
    if most is not None or len(costs) > 50:
        return reference.lanes(costs, most, room)
    left, found = dict.fromkeys(sorted(range(len(costs)), key=lambda piece: -costs[piece])), []
    longest = max(costs, default=0)
    while left:
        lane = [next(iter(left))]
        del left[lane[0]]
        end = costs[lane[0]]
        fits = [] if end == longest else sorted(left)
        while fits and end < longest and len(lane) != room:
            piece = fits.pop(0)
            if end + costs[piece] <= longest:
                lane.append(piece)
                end += costs[piece]
                del left[piece]
            fits = [one for one in fits if end + costs[one] <= longest]
        found.append(lane)
    return found
