"""Finds the conversation whose beginning is worth least, and lets all of it go before another."""

import reference
from reference import *


def victims(profile, size, chunks, now, count):
    order = reference.victims(profile, size, chunks, now, len(chunks))
    turns = {}
    for place in order:
        turns.setdefault(chunks[place][0], []).append(place)
    return [place for places in turns.values() for place in places][:count]
