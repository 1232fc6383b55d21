"""Compares what lies on both tiers with what lies on the device alone, and takes the least of all."""

import reference
from reference import *


def take(profile, size, tiers, now):
    every = [*tiers["both"], *tiers["device"]]
    if not tiers["free"] and every:
        (least,) = reference.victims(profile, size, every, now, 1)
        if least >= len(tiers["both"]):
            tiers = {**tiers, "both": []}
    return reference.take(profile, size, tiers, now)
