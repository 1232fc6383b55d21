"""Packing attention into lanes: Figure 9, properties, and how far greedy is from the fewest lanes (FluidInfer, 4.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.attention.packing import Bubbles, Lanes, bubbles_of, pack, seconds_of

# Of Fig. 9, where a single token takes less than a prompt of 2: its context is short, and memory is fast.
RATES = {"hidden_size": 64, "flops": 1e3, "bandwidth": 1e4}
FIG_9 = {1: (5, 5), 2: (2, 2), 3: (1, 3), 4: (5, 5), 5: (1, 3), 6: (1, 3)}  # item: queries, context

lengths = st.lists(st.integers(1, 40), max_size=24)


def length_of(lane: tuple[int, ...], seconds: list[int]) -> int:
    return sum(seconds[piece] for piece in lane)


def test_the_example_of_fig_9b() -> None:
    """Lanes [1], [4], [2, 3, ...]: the prompt of 2 is followed by single tokens."""
    seconds = [seconds_of(*FIG_9[item], **RATES) for item in sorted(FIG_9)]
    assert seconds[0] > seconds[1] > seconds[2]
    lanes = [[piece + 1 for piece in lane] for lane in pack(seconds)]
    assert lanes == [[1], [4], [2, 3, 5, 6]]


def test_the_bubbles_of_fig_9a() -> None:
    """Three at a time, a lane each: (1, 2, 3) and (4, 5, 6). Packed, they are a single wave with next to no bubbles."""
    seconds = [seconds_of(*FIG_9[item], **RATES) for item in sorted(FIG_9)]
    prompts = [FIG_9[item][0] > 1 for item in sorted(FIG_9)]
    ordinary = [bubbles_of(seconds, prompts, wave) for wave in (((0,), (1,), (2,)), ((3,), (4,), (5,)))]
    long, short, token = seconds[0], seconds[1], seconds[2]
    assert ordinary[0].prompts_s == pytest.approx(long - short)  # type A
    assert ordinary[0].tokens_s == pytest.approx(long - token)  # type B
    assert (ordinary[1].prompts_s, ordinary[1].tokens_s) == (0, pytest.approx(2 * (long - token)))
    both = ordinary[0] + ordinary[1]
    packed = bubbles_of(seconds, prompts, pack(seconds))
    assert packed.busy_s == pytest.approx(both.busy_s)
    assert packed.idle < both.idle / 2


def test_single_tokens_alone_are_neither_type() -> None:
    assert bubbles_of([5, 3], [False, False], ((0,), (1,))) == Bubbles(8, 0, 0, 2)


def test_costs_are_the_papers() -> None:
    """4 L^2 H operations at c, and 4 x H + 8 x + 4 H bytes at BW (4.1); two queries read as much as one."""
    rates = {"hidden_size": 4096, "flops": 165e12, "bandwidth": 1.008e12}
    assert seconds_of(2048, 2048, **rates) == pytest.approx(4 * 2048**2 * 4096 / 165e12)
    assert seconds_of(1, 700, **rates) == pytest.approx((4 * 700 * 4096 + 8 * 700 + 4 * 4096) / 1.008e12)
    assert seconds_of(2, 700, **rates) > seconds_of(1, 700, **rates)


@given(lengths)
def test_every_piece_is_in_one_lane_and_none_exceeds_the_longest(seconds: list[int]) -> None:
    lanes = pack(seconds)
    assert sorted(piece for lane in lanes for piece in lane) == list(range(len(seconds)))
    assert all(length_of(lane, seconds) <= max(seconds) for lane in lanes)


@given(lengths)
def test_a_lane_is_full_before_the_next_is_opened(seconds: list[int]) -> None:
    """By definition, looking at every piece that is left: the longest that fits, of equal ones the first."""
    left = list(range(len(seconds)))
    for lane in pack(seconds):
        end = 0
        for piece in lane:
            fitting = [other for other in left if end + seconds[other] <= max(seconds)]
            assert piece == max(fitting, key=lambda other: (seconds[other], -other))
            left.remove(piece)
            end += seconds[piece]
        assert not [other for other in left if end + seconds[other] <= max(seconds)]


@given(lengths.filter(bool))
def test_no_more_is_idle_than_with_a_lane_for_each(seconds: list[int]) -> None:
    prompts = [length > 20 for length in seconds]
    alone: Lanes = tuple((piece,) for piece in range(len(seconds)))
    assert bubbles_of(seconds, prompts, pack(seconds)).idle <= bubbles_of(seconds, prompts, alone).idle


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_near_the_fewest_lanes(seconds: list[int]) -> None:
    """Against all ways to divide them: first-fit decreasing takes 11/9 of the fewest plus 6/9, at most."""
    assert 9 * len(pack(seconds)) <= 11 * _fewest(seconds) + 6


def _fewest(seconds: list[int]) -> int:
    """Lanes no longer than the longest piece, by branch and bound."""
    longest, best = max(seconds), len(seconds)

    def place(number: int, ends: list[int]) -> None:
        nonlocal best
        if len(ends) >= best:
            return
        if number == len(seconds):
            best = len(ends)
            return
        for lane, end in enumerate(ends):
            if end + seconds[number] <= longest:
                place(number + 1, [*ends[:lane], end + seconds[number], *ends[lane + 1 :]])
        place(number + 1, [*ends, seconds[number]])

    seconds = sorted(seconds, reverse=True)
    place(0, [])
    return best


@given(lengths.filter(bool), st.integers(1, 6))
def test_no_more_lanes_than_there_may_be(seconds: list[int], most: int) -> None:
    """What is left over goes to the lane that ends first: none ends later than list scheduling allows (Graham)."""
    lanes = pack(seconds, most)
    assert len(lanes) <= most
    assert sorted(piece for lane in lanes for piece in lane) == list(range(len(seconds)))
    ends = [length_of(lane, seconds) for lane in lanes]
    if len(lanes) == most:
        assert max(ends) <= max(max(seconds), sum(seconds) / most + max(seconds))
    else:
        assert lanes == pack(seconds)


@pytest.mark.parametrize("most", [0, -1])
def test_no_lanes_are_refused(most: int) -> None:
    with pytest.raises(ValueError, match=f"into {most} lanes: give at least 1"):
        pack([1.0], most)


def test_a_hundred_thousand_pieces() -> None:
    """The search for what fits is logarithmic: with a linear one this would take minutes."""
    seconds = [1 + (7919 * i) % 997 for i in range(100_000)]
    lanes = pack(seconds)
    assert sum(map(len, lanes)) == len(seconds)
    assert len(lanes) <= sum(seconds) / max(seconds) * 11 / 9 + 1
