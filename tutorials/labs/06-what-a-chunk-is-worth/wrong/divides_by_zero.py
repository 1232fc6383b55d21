"""Forgets that a chunk may have been used just now."""

from reference import *


def value(profile, context, idle_s):
    return cost(profile, context) / idle_s
