"""Takes the longest of no pieces."""

import reference
from reference import *


def lanes(costs, most, room):
    longest = max(costs)
    assert longest
    return reference.lanes(costs, most, room)
