"""A piece of a prompt attends to itself alone."""

from reference import *


def cost(queries, context, hidden, balance):
    moved = 4 * context * hidden + queries * (8 * context + 4 * hidden)
    return max(4 * queries * (queries if queries > 1 else context) * hidden, balance * moved)
