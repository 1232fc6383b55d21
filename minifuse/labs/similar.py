"""Compares hand-ins by runs of tokens that two files share and the skeleton lacks.

A run is 15 successive tokens. All names count as equal, and so do all numbers and all texts; comments and blank
lines are ignored. So renaming does not hide a copy.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

LENGTH = 15  # tokens of a run
NOTHING = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})


@dataclass(frozen=True)
class Alike:
    """Two files: how many runs they share, and which fraction of the smaller file's runs."""

    one: str
    other: str
    shared: int
    ratio: float


def alike(files: Mapping[str, bytes], given: bytes) -> list[Alike]:
    """Compare every two files, most alike first; runs of the skeleton `given` do not count."""
    handed_out = runs(given)
    own = {name: runs(text) - handed_out for name, text in files.items()}
    pairs = []
    for one, other in combinations(own, 2):
        shared, least = len(own[one] & own[other]), min(len(own[one]), len(own[other]))
        pairs.append(Alike(one, other, shared, shared / least if least else 0.0))
    return sorted(pairs, key=lambda pair: (-pair.ratio, -pair.shared, pair.one, pair.other))


def runs(text: bytes) -> set[tuple[str, ...]]:
    """Return all runs of tokens in a file, up to the first syntax error."""
    tokens: list[str] = []
    try:
        for token in tokenize.tokenize(io.BytesIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                tokens.append("name")
            elif token.type in (tokenize.NAME, tokenize.OP):
                tokens.append(token.string)
            elif token.type not in NOTHING:
                tokens.append(tokenize.tok_name[token.type])
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        pass
    return {tuple(tokens[i : i + LENGTH]) for i in range(len(tokens) - LENGTH + 1)}
