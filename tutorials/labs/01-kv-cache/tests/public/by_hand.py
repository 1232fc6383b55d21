"""Cases that can be done by hand."""

from math import log

from stage import ONE, Cached

from minifuse.core.request import Request
from minifuse.labs.engine import check_schedule, run
from minifuse.labs.judge import Unmet

SPANS = [
    (5, [], [(0, 5)]),
    (5, [(0, 5)], []),
    (6, [(0, 5)], [(5, 6)]),
    (12, [(0, 4), (6, 9)], [(4, 6), (9, 12)]),
    (9, [(2, 4), (7, 9)], [(0, 2), (4, 7)]),
    (8, [(0, 5), (5, 6), (6, 7)], [(7, 8)]),
]
# A query, keys, values, and the output. With d numbers in a head, a score is q k / sqrt(d).
ATTENTION = [
    ([1.0], [[0.0]], [[5.0]], [5.0]),
    ([1.0], [[log(1)], [log(2)], [log(4)]], [[7.0], [7.0], [0.0]], [3.0]),  # weights 1, 2 and 4, of 7
    ([2.0, 0, 0, 0], [[0.0] * 4, [log(3), 9, 9, 9]], [[4.0, 0, 8, 0], [0.0, 4, 0, 8]], [1.0, 3, 2, 6]),  # 1 and 3
]
NEAR = 1e-6  # of the largest value, as in the hidden tests: numpy may compute in float32
FLOATS = list[list[list[float]]]


def test_missing_by_hand(work):
    """Six short texts miss the spans that they should."""
    for length, written, right in SPANS:
        found = [tuple(span) for span in work.call("missing", length, written, form=list[tuple[int, int]])]
        if found != right:
            raise Unmet(f"missing({length}, {written}) is {found}, and should be {right}.")


def test_attention_by_hand(work):
    """A query over one key, over three whose weights are 1, 2 and 4, and over two with heads of four numbers."""
    for query, keys, values, right in ATTENTION:
        cache = work.make("KVCache", 1, len(query))
        for key, value in zip(keys, values, strict=True):
            cache("append", [[key]], [[value]], form=None)
        found = cache("attend", [[query]], form=FLOATS)
        flat = found[0][0] if len(found) == 1 and len(found[0]) == 1 else []
        near = NEAR * max(map(abs, right))
        if len(flat) != len(right) or not all(abs(one - other) <= near for one, other in zip(flat, right)):
            raise Unmet(
                f"the query {query} over keys {keys} with values {values} gives {found}, and should give [[{right}]]."
            )


def test_runs_in_the_engine(work):
    """A prompt of 5 tokens is computed once, then each new token but the last: 5 + 1 + 1 + 1, in four iterations."""
    found = run(work, ONE, Cached, [Request("ann", (1, 2, 3, 4, 5), 4, ignore_eos=True)])
    check_schedule(found, [[("ann", 0, 5)], [("ann", 5, 6)], [("ann", 6, 7)], [("ann", 7, 8)]])
