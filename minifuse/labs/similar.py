"""Compares hand-ins, and sources that students can read, by runs of tokens that two files share.

A run is 15 successive tokens. All names count as equal, and so do all numbers and all texts; comments and blank
lines are ignored. So renaming does not hide a copy.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

from minifuse.io.shipped import HOME, places, shipped
from minifuse.labs.lab import Lab
from minifuse.labs.skeleton import skeleton

REFERENCE = "(reference)"
CHAPTERS = places("tutorials", "tutorials")
LENGTH = 15  # tokens of a run
NOTHING = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})


@dataclass(frozen=True)
class Alike:
    """Two files: how many runs they share, and which fraction of the smaller file's runs."""

    one: str
    other: str
    shared: int
    ratio: float


def published(lab: Lab) -> dict[str, bytes]:
    """Return what students could copy: the reference, the withheld modules, the chapter."""
    reference = lab.folder / "solution.py"
    found = {REFERENCE: reference.read_bytes()}
    for module in lab.limits.withheld:
        place = HOME.parent.joinpath(*module.split("."))
        for path in sorted(place.rglob("*.py")) or [place.with_suffix(".py")]:
            found[path.relative_to(HOME.parent).as_posix()] = path.read_bytes()
    for path in shipped(CHAPTERS, "The tutorials are").glob(f"{lab.chapter:02}_*.py"):
        found[f"tutorials/{path.name}"] = path.read_bytes()
    return found


def alike(files: Mapping[str, bytes], lab: Lab) -> list[Alike]:
    """Compare hand-ins with each other and with what is published, most alike first.

    Runs of the lab's skeleton do not count.
    """
    sources = published(lab)
    handed_out = runs(skeleton(sources[REFERENCE].decode()).encode())
    own, known = ({name: runs(text) - handed_out for name, text in one.items()} for one in (files, sources))
    every = known | own
    pairs = []
    for one, other in (*product(known, own), *combinations(own, 2)):
        shared, least = len(every[one] & every[other]), min(len(every[one]), len(every[other]))
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
