"""Prompts are bound by arithmetic and single tokens by memory, whatever the lengths."""

from reference import *


def cost(queries, context, hidden, balance):
    if queries > 1:
        return 4 * queries * context * hidden
    return balance * (4 * context * hidden + 8 * context + 4 * hidden)
