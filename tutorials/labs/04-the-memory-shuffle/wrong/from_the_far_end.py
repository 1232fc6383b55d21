"""Fills the free places from the right."""

import reference
from reference import *


def moves(live):
    found = reference.moves(live)
    return [(source, target) for (source, _), (_, target) in zip(found, reversed(found))]
