"""Packed attention in the interpreter: in whichever lane a sequence is, it gets what attention by itself gives."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from kernel_cases import SHAPES, assert_near, assert_refused, expected, lay_out, parts_of, shapes_by_layout

from minifuse.kernels.packed import WorkLists, packed_attention

WORK = [(5, 5), (2, 2), (1, 37), (5, 5), (1, 64), (1, 3)]  # Fig. 9 with longer contexts: queries, context


def lists_of(*lanes: tuple[int, ...]) -> WorkLists:
    starts, sequences = list(accumulate(map(len, lanes), initial=0)), [index for lane in lanes for index in lane]
    return WorkLists(*(torch.tensor(numbers, dtype=torch.int32) for numbers in (starts, sequences)))


PACKED = lists_of((0,), (3,), (1, 2, 4, 5))


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "page"), shapes_by_layout(SHAPES, [16, 0, 5]))
def test_right_in_every_shape(heads: int, kv_heads: int, dim: int, page: int) -> None:
    parts = parts_of(WORK, heads, kv_heads, dim)
    assert_near(packed_attention(*lay_out(parts, page), PACKED), expected(parts))


@pytest.mark.parametrize(
    "lanes", [((0, 1, 2, 3, 4, 5),), ((5,), (4,), (3,), (2,), (1,), (0,)), ((), (2, 0, 4, 1, 5, 3))]
)
def test_any_lanes_give_the_same(lanes: tuple[tuple[int, ...], ...]) -> None:
    arguments = lay_out(parts_of(WORK), 16)
    want = packed_attention(*arguments, PACKED)
    torch.testing.assert_close(packed_attention(*arguments, lists_of(*lanes)), want, rtol=0, atol=0)


def test_a_long_prompt_and_single_tokens() -> None:
    """Several query tiles of one sequence, in a lane with others."""
    parts = parts_of([(1, 20), (150, 190), (1, 90)], 1, 1)
    assert_near(packed_attention(*lay_out(parts, 16), lists_of((1, 0), (2,))), expected(parts))


def test_only_single_tokens() -> None:
    parts = parts_of([(1, 70), (1, 1), (1, 33)])
    assert_near(packed_attention(*lay_out(parts, 16), lists_of((0,), (2, 1))), expected(parts))


def test_float16() -> None:
    parts = parts_of(WORK)
    assert_near(packed_attention(*lay_out(parts, 16, torch.float16), PACKED), expected(parts))


def test_nothing_to_do() -> None:
    q, keys, values, ragged = lay_out(parts_of([(0, 7), (0, 2)]), 16)
    assert packed_attention(q, keys, values, ragged, lists_of((0, 1))).shape == (0, 4, 16)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (lists_of((0, 1)), "give one of [3]"),
        (lists_of((0, 1, 1)), "hold the sequences [0, 1, 1] of 3: give each once"),
        (lists_of((0, 1, 3)), "hold the sequences [0, 1, 3] of 3"),
        (WorkLists(lists_of((0, 1, 2)).starts[:1], lists_of((0, 1, 2)).sequences), "there are no lanes"),
        (WorkLists(lists_of((0, 1), (2,)).starts[:2], lists_of((0, 1, 2)).sequences), "begin at [0, 2] in 3"),
        (WorkLists(lists_of((0, 1, 2)).starts.long(), lists_of((0, 1, 2)).sequences), "give int32"),
    ],
)
def test_lists_that_do_not_fit(lists: WorkLists, says: str) -> None:
    assert_refused(packed_attention, says, *lay_out(parts_of([(1, 4), (2, 2), (1, 9)]), 16), lists)


def test_empty_columns_are_refused() -> None:
    arguments = lay_out(parts_of([(2, 9)] * 2), 0, first=[1, 3])
    assert_refused(packed_attention, "empty columns", *arguments, lists_of((0,), (1,)))
