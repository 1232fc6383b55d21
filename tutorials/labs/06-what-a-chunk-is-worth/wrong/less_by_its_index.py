"""Drops a chunk of a full host that is worth as much as the one that comes, if its index is lower."""

import reference
from reference import *


def take(profile, size, tiers, now):
    what, going, dropped = reference.take(profile, size, tiers, now)
    if what == "drop" and tiers["host"]:
        least = min(reference.worths(profile, size, tiers["host"], now))
        if least < reference.worths(profile, size, tiers["device"], now)[going]:
            return "swap_out", going, least[-1]
    return what, going, dropped
