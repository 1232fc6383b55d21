"""Takes the last of equal windows."""

from reference import *


def window_offset(live):
    count = sum(live)
    inside = [sum(live[start : start + count]) for start in range(len(live) - count + 1)]
    return max(range(len(inside)), key=lambda start: (inside[start], start))
