"""Goes from the longest to the shortest piece, and opens a new lane as soon as one does not fit."""

import reference
from reference import *


def lanes(costs, most, room):
    if most is not None:
        return reference.lanes(costs, most, room)
    found, end = [], 0
    for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
        if not found or end + costs[piece] > max(costs) or len(found[-1]) == room:
            found.append([])
            end = 0
        found[-1].append(piece)
        end += costs[piece]
    return found
