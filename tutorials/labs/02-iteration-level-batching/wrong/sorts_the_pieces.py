"""Takes it that single tokens lie before prompts in the matrix."""

from reference import *


def attention(work):
    rows, row = {}, 0
    for name, start, stop in sorted(work, key=lambda piece: piece[2] - piece[1]):
        rows[name] = (row, row + stop - start, stop)
        row += stop - start
    return [rows[name] for name, _, _ in work]
