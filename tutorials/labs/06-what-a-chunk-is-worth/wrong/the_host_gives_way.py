"""Drops the least of a full host without asking whether it is worth less than what comes."""

import reference
from reference import *


def take(profile, size, tiers, now):
    what, going, dropped = reference.take(profile, size, tiers, now)
    if what == "drop" and tiers["host"]:
        return "swap_out", going, reference.victims(profile, size, tiers["host"], now, 1)[0]
    return what, going, dropped
