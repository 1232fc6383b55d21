"""Copies from place to place, against copies token by token."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.places import Pages, Runs
from minifuse.core.plan import Extent
from minifuse.memory.copies import copies

MOST = 12  # tokens that every place has room for
EXTENTS = st.builds(Extent, st.integers(0, 50), st.just(MOST))
PAGES = st.integers(1, 4).flatmap(
    lambda size: st.builds(lambda blocks: Pages(tuple(blocks[: -(-MOST // size)]), size), st.permutations(range(12)))
)
RUNS = st.lists(st.integers(1, 5), min_size=MOST, max_size=MOST).map(
    lambda lengths: Runs(tuple((20 * i, length) for i, length in enumerate(lengths)))
)
PLACES = EXTENTS | PAGES | RUNS


@settings(max_examples=200, deadline=None, derandomize=True)
@given(before=PLACES, after=PLACES, count=st.integers(0, MOST))
def test_every_token_is_copied_once_and_adjacent_ones_together(
    before: Extent | Pages | Runs, after: Extent | Pages | Runs, count: int
) -> None:
    moves = copies("swap_out", before, after, count)
    copied = [(move.source + i, move.target + i) for move in moves for i in range(move.num_tokens)]
    assert copied == list(zip(before.slots(0, count), after.slots(0, count), strict=True))
    for one, two in pairwise(moves):
        adjacent = (one.source + one.num_tokens, one.target + one.num_tokens)
        assert adjacent != (two.source, two.target)
    assert all((move.source_tier, move.target_tier) == ("device", "host") for move in moves)
