"""Takes the longest of no lanes."""

import reference
from reference import *


def bubbles(costs, prompts, lanes):
    ends = [sum(costs[piece] for piece in lane) for lane in lanes]
    assert max(ends)
    return reference.bubbles(costs, prompts, lanes)
