"""Of pieces that cost the same, takes the last."""

import reference
from reference import *


def lanes(costs, most, room):
    found = reference.lanes(costs[::-1], most, room)
    return [[len(costs) - 1 - piece for piece in lane] for lane in found]
