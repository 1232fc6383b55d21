"""A case that can be done by hand, and the simplest batches."""

from math import log

from stage import asked, compare, drawn

from minifuse.labs.judge import Unmet

DIM = 16


def wide(number):
    """A vector of `DIM` numbers, of which only the first is not 0."""
    return [number] + [0.0] * (DIM - 1)


def test_one_query_by_hand(work):
    """Tokens with the weights 1, 2, 4 and 1, and the values 7, 7, 0 and 3, in two blocks: (7 + 14 + 0 + 3) / 8 = 3."""
    # With 16 numbers in a head the scale is 1/4, so the query 4 makes the key its score.
    keys = [[wide(log(weight))] for weight in (4, 1, 1, 2)]  # block 1 is first: tokens 0 and 1 lie in slots 2 and 3
    values = [[wide(value)] for value in (0.0, 3.0, 7.0, 7.0)]
    found = asked(work, [[[wide(4.0)]]], keys, values, [[1, 0]], [4], 2)
    if not abs(found[0][0][0][0] - 3) < 1e-5 or any(found[0][0][0][1:]):
        raise Unmet(f"the output is {found[0][0][0]}, and should be 3 and then zeros.")


def test_several_requests(work):
    """Three requests with one query each, over 4, 16 and 8 tokens in blocks of 4."""
    compare(work, drawn(work.random, [(1, 4), (1, 16), (1, 8)]))
