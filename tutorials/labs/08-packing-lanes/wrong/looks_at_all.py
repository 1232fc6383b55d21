"""Looks at all pieces for each one that it takes."""

from reference import *


def lanes(costs, most):
    left, longest = sorted(range(len(costs)), key=lambda piece: -costs[piece]), max(costs, default=0)
    found = []
    while left and len(found) != most:
        lane, end, kept = [], 0, []
        for piece in left:
            if end + costs[piece] <= longest:
                lane.append(piece)
                end += costs[piece]
            else:
                kept.append(piece)
        found.append(lane)
        left = kept
    ends = [sum(costs[piece] for piece in lane) for lane in found]
    for piece in left:
        number = ends.index(min(ends))
        found[number].append(piece)
        ends[number] += costs[piece]
    return found
