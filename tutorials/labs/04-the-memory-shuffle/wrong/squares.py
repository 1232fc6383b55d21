"""Counts every window anew."""

from reference import *


def window_offset(live, stays):
    count, most, offset = sum(live), -1, 0
    for start in range(len(live) - count + 1):
        if stays is not None and not start <= stays < start + count:
            continue
        inside = 0
        for buffer in range(start, start + count):
            inside += live[buffer]
        if inside > most:
            most, offset = inside, start
    return offset
