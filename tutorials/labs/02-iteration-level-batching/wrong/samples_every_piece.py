"""Draws a token from the last row of every piece, also of a prompt that goes on."""

from reference import *


def sampled(work, lengths):
    return [(name, last - 1) for (name, _, _), (_, last, _) in zip(work, attention(work))]
