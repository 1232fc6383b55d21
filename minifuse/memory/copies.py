"""Computes the moves that copy a sequence's KV from one place to another."""

from __future__ import annotations

from itertools import accumulate, pairwise

from minifuse.core.places import Pages, Runs, runs_in
from minifuse.core.plan import Extent, Move, MoveKind, Tier

TIERS: dict[MoveKind, tuple[Tier, Tier]] = {"swap_in": ("host", "device"), "swap_out": ("device", "host")}


def copies(kind: MoveKind, before: Extent | Runs | Pages, after: Extent | Runs | Pages, num_tokens: int) -> list[Move]:
    """Return the moves that copy a sequence's first tokens from `before` to `after`.

    Each move copies tokens whose slots are adjacent in both places.

    >>> copies("embed", Extent(4, 9), Runs(((10, 3), (20, 4))), 5)  # doctest: +NORMALIZE_WHITESPACE
    [Move(kind='embed', source=4, target=10, num_tokens=3, source_tier='device', target_tier='device', moment='first',
     wave=0),
     Move(kind='embed', source=7, target=20, num_tokens=2, source_tier='device', target_tier='device', moment='first',
     wave=0)]
    >>> len(copies("swap_out", Pages((3, 4), 4), Pages((0, 1), 4), 6))
    1
    >>> len(copies("swap_out", Pages((3, 4), 4), Pages((1, 0), 4), 6))
    2
    """
    cuts = sorted({*_starts(before, num_tokens), *_starts(after, num_tokens), num_tokens})
    return [
        Move(kind, before.slots(i, i + 1)[0], after.slots(i, i + 1)[0], stop - i, *TIERS.get(kind, ()))
        for i, stop in pairwise(cuts)
    ]


def _starts(place: Extent | Runs | Pages, num_tokens: int) -> list[int]:
    """Return which of the first `num_tokens` tokens begin a run of adjacent slots."""
    if isinstance(place, Pages):
        blocks, size = place.blocks, place.size
        return [i * size for i in range(-(-num_tokens // size)) if not i or blocks[i] != blocks[i - 1] + 1]
    starts = accumulate([length for _, length in runs_in(place)], initial=0)
    return [start for start in starts if start < num_tokens]
