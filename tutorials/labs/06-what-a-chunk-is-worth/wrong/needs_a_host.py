"""Looks for the least on a full host, and does not think of a machine whose host keeps nothing."""

import reference
from reference import *


def take(profile, size, tiers, now):
    if not tiers["free"] and not tiers["both"] and not tiers["host_free"]:
        min(tiers["host"])
    return reference.take(profile, size, tiers, now)
