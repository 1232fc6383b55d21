"""Algorithm 1 against Fig. 6 and brute force, and the copies that follow from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.memory.slots.shuffle import shuffle, shuffled_region


def _outside(arr: list[int], offset: int) -> int:
    """The copies it takes to fill the window at `offset`: the elements outside of it."""
    size = sum(element != 0 for element in arr)
    return sum(arr) - sum(arr[offset : offset + size])


def _least(arr: list[int]) -> int:
    size = sum(element != 0 for element in arr)
    return min(_outside(arr, offset) for offset in range(len(arr) - size + 1))


@pytest.mark.parametrize(
    ("arr", "offset"),
    [([], 0), ([0, 0, 0], 0), ([1], 0), ([0, 0, 1], 2), ([1, 1, 1], 0), ([1, 0, 0, 1], 0), ([0, 1, 0, 1, 1, 0], 1)],
)
def test_by_hand(arr: list[int], offset: int) -> None:
    """Also where there is nothing to gather; of two windows that cost the same, the first."""
    assert shuffled_region(arr) == offset


@given(st.lists(st.integers(0, 9), min_size=1, max_size=16))
def test_costs_may_be_sizes(arr: list[int]) -> None:
    """As printed, the array holds integers: of buffers of unequal cost, the cheapest are left outside."""
    assert _outside(arr, shuffled_region(arr)) == _least(arr)


@given(st.lists(st.sampled_from(["free", "live", "live", "fixed"]), min_size=1, max_size=20))
def test_no_content_is_lost_and_no_other_buffer_is_overwritten(kinds: list[str]) -> None:
    live = [i for i, kind in enumerate(kinds) if kind == "live"]
    fixed = [i for i, kind in enumerate(kinds) if kind == "fixed"]
    if not live:
        return
    result = shuffle(live, fixed, len(kinds))
    held: dict[int, int] = {buffer: buffer for buffer in live}  # where each content lies -> the buffer it was in
    for source, target in result.moves:
        assert target not in held
        assert target not in fixed
        held[target] = held.pop(source)
    assert sorted(held.values()) == live
    region = range(result.offset, result.offset + result.size)
    assert set(held) <= set(region)
    assert set(region) - set(held) <= set(fixed)  # what else is in the region cannot be moved


@given(st.lists(st.sampled_from(["free", "live", "fixed"]), min_size=1, max_size=12))
def test_fewest_copies_beside_fixed_buffers(kinds: list[str]) -> None:
    """Brute force over all sets of buffers that the live ones might end up in."""
    live = [i for i, kind in enumerate(kinds) if kind == "live"]
    fixed = {i for i, kind in enumerate(kinds) if kind == "fixed"}
    if not live:
        return
    fewest = len(kinds)
    for start in range(len(kinds)):
        places = [i for i in range(start, len(kinds)) if i not in fixed][: len(live)]
        if len(places) == len(live):
            fewest = min(fewest, len(set(live) - set(places)))
    assert len(shuffle(live, sorted(fixed), len(kinds)).moves) == fewest
