"""Lets the end of a text go first where values are equal."""

import math

from reference import *


def victims(profile, size, chunks, now, count):
    keys = []
    for place, (_, index, active_s) in enumerate(chunks):
        idle_s = now - active_s
        worth = cost(profile, (index + 1) * size) / idle_s if idle_s else math.inf
        keys.append((worth, -index, active_s, place))
    return [key[-1] for key in sorted(keys)[:count]]
