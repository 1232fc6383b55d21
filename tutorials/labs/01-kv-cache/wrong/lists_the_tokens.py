"""Looks at each token."""

from reference import *


def missing(length, written):
    there = [False] * length
    for start, stop in written:
        for token in range(start, stop):
            there[token] = True
    gaps = []
    for token in range(length):
        if not there[token]:
            if gaps and gaps[-1][1] == token:
                gaps[-1] = gaps[-1][0], token + 1
            else:
                gaps.append((token, token + 1))
    return gaps
