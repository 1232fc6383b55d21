"""Lets the highest priority go first, whatever is ready of it."""

from reference import *


def choose_type(types):
    ready = [one for one in types if one["ready"]]
    return max(ready, key=lambda one: one["priority"])["name"] if ready else None
