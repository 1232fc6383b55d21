"""Goes over all chunks once for each that goes."""

import reference
from reference import *


def victims(profile, size, chunks, now, count):
    values = reference.worths(profile, size, chunks, now)
    found = []
    while len(found) < min(count, len(chunks)):
        least = None
        for one in values:
            if least is None or one < least:
                least = one
        values = [one for one in values if one is not least]
        found.append(least[-1])
    return found
