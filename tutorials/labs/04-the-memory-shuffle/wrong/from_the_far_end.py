"""Fills the free places from the right."""

import reference
from reference import *


def moves(live, stays):
    found = reference.moves(live, stays)
    return [(source, target) for (source, _), (_, target) in zip(found, reversed(found))]
