"""Looks at all pieces for each one that it takes."""

from reference import *


def lanes(costs, most, room):
    left, longest = sorted(range(len(costs)), key=lambda piece: -costs[piece]), max(costs, default=0)
    found = []
    while left and len(found) != most:
        lane, end, kept = [], 0, []
        for piece in left:
            if len(lane) != room and end + costs[piece] <= longest:
                lane.append(piece)
                end += costs[piece]
            else:
                kept.append(piece)
        found.append(lane)
        left = kept
    ends = [sum(costs[piece] for piece in lane) for lane in found]
    for piece in left:
        number = min((one for one in range(most) if len(found[one]) != room), key=lambda one: ends[one])
        found[number].append(piece)
        ends[number] += costs[piece]
    return found
