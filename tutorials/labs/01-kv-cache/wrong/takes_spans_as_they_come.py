"""Takes the spans as if they came in order, as they do in the engine."""

from reference import *


def missing(length, written):
    gaps, reached = [], 0
    for start, stop in written:
        if start > reached:
            gaps.append((reached, start))
        reached = stop
    return gaps + [(reached, length)] * (reached < length)
