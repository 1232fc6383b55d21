"""Asks for a place from the third piece of a lane on, so that a lane of one place gets two pieces."""

import reference
from reference import *


def lanes(costs, most, room):
    return reference.lanes(costs, most, 2 if room == 1 and most is None else room)
