"""Takes the last of equal windows."""

from reference import *


def window_offset(live, stays):
    count = sum(live)
    starts = [one for one in range(len(live) - count + 1) if stays is None or one <= stays < one + count]
    return max(starts, key=lambda start: (sum(live[start : start + count]), start))
