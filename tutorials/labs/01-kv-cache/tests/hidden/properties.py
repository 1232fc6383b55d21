"""What holds of any texts, heads and pieces."""

import numpy as np
from hypothesis import strategies as st
from stage import MANY, Cached, asked

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

FLOATS = list[list[list[float]]]
NEAR = 1e-6  # of the largest value


def exact(queries, keys, values):
    """Attention of the last tokens of a text, computed from nothing, a head and a token at a time."""
    group, out = queries.shape[1] // keys.shape[1], np.empty(queries.shape)
    for i, token in enumerate(range(len(keys) - len(queries), len(keys))):
        for head in range(queries.shape[1]):
            scores = keys[: token + 1, head // group] @ queries[i, head] / np.sqrt(queries.shape[2])
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[: token + 1, head // group] / weights.sum()
    return out


def compare(told, found, right):
    """`told` says what was given."""
    try:
        found = np.array(found, float)
    except ValueError:  # ragged
        found = np.zeros(0)
    if found.shape != right.shape:
        raise Unmet(f"{told}, attend returned lists of the sizes {found.shape}, and should return {right.shape}.")
    wrong = ~(np.abs(found - right) <= NEAR * max(1.0, np.abs(right).max()))  # NaN is wrong, too
    if wrong.any():
        token, head, _ = (int(one) for one in np.argwhere(wrong)[0])
        came, should = (np.round(one[token, head], 4).tolist() for one in (found, right))
        raise Unmet(f"{told}, query {token} under head {head} gives {came}, and should give {should}.")


def drawn(seed, length, heads, kv_heads, dim):
    random = np.random.default_rng(seed)
    return (random.normal(size=(length, count, dim)) for count in (heads, kv_heads, kv_heads))


@st.composite
def texts(draw):
    length = draw(st.integers(1, 12))
    span = st.integers(0, length - 1).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, length)))
    return length, draw(st.lists(span, max_size=6))


def test_missing_spans(work):
    """Whatever the order and overlap of the written spans: just the tokens that none has are missing, in few spans."""

    def demand(case):
        length, written = case
        found = asked(work, length, written)
        gone = [token for token in range(length) if not any(start <= token < stop for start, stop in written)]
        right = (
            [token for token in gone if token - 1 not in gone],
            [token + 1 for token in gone if token + 1 not in gone],
        )
        right = list(zip(*right, strict=True))
        if found != right:
            raise Unmet(f"missing({length}, {written}) is {found}, and should be {right}.")

    work.smallest(texts(), demand)


def test_missing_counts_no_tokens(work):
    """Missing spans of a text of 100,000 tokens take as few steps as those of a text of 100."""
    steps, (first, second, third) = [], sorted(work.random.sample(range(1, 100), 3))
    for unit in (1, 1000):
        found = asked(work, 100 * unit, [(0, first * unit), (second * unit, third * unit)])
        if found != (right := [(first * unit, second * unit), (third * unit, 100 * unit)]):
            raise Unmet(f"missing gives {found} for spans in units of {unit}, and should give {right}.")
        steps.append(work.steps)
    if steps[1] > steps[0] + 20:
        raise Unmet(f"missing takes {steps[0]} steps for 100 tokens, and {steps[1]} for 100,000 with as many spans.")


def test_heads_share_keys(work):
    """A query at a time, with any number of heads that share a KV head: as if computed from nothing."""

    def demand(case):
        seed, length, kv_heads, group = case
        queries, keys, values = drawn(seed, length, kv_heads * group, kv_heads, 3)
        cache = work.make("KVCache", kv_heads, 3)
        for token in range(length):
            cache("append", keys[token : token + 1].tolist(), values[token : token + 1].tolist(), form=None)
            found = cache("attend", queries[token : token + 1].tolist(), form=FLOATS)
            right = exact(queries[token : token + 1], keys[: token + 1], values[: token + 1])
            compare(f"With {kv_heads * group} heads, {kv_heads} KV heads and {token + 1} tokens", found, right)

    work.smallest(st.tuples(st.integers(0, 99), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)), demand, 40)


def test_pieces_are_causal(work):
    """A text in pieces of several tokens: each token attends to itself and to those before it, and to no later one."""

    def demand(case):
        seed, pieces, (heads, kv_heads) = case
        queries, keys, values = drawn(seed, sum(pieces), heads, kv_heads, 4)
        cache, stop = work.make("KVCache", kv_heads, 4), 0
        for piece in pieces:
            start, stop = stop, stop + piece
            cache("append", keys[start:stop].tolist(), values[start:stop].tolist(), form=None)
            found = cache("attend", queries[start:stop].tolist(), form=FLOATS)
            told = (
                f"With {heads} heads, {kv_heads} KV heads and a text in pieces of {pieces} tokens, after {stop} tokens"
            )
            compare(told, found, exact(queries[start:stop], keys[:stop], values[:stop]))
        for last in {stop, max(1, stop - 1)}:  # queries of several pieces, or of a part of one
            found = cache("attend", queries[stop - last :].tolist(), form=FLOATS)
            told = f"With {heads} heads, {kv_heads} KV heads and a text in pieces of {pieces} tokens, {last} queries"
            compare(told, found, exact(queries[stop - last :], keys, values))

    pieces = st.lists(st.integers(1, 5), min_size=1, max_size=4)
    work.smallest(st.tuples(st.integers(0, 99), pieces, st.sampled_from([(1, 1), (3, 1), (3, 3)])), demand, 40)


def test_large_scores(work):
    """Scores of thousands, positive and negative, give numbers, and the right ones."""
    large = work.random.uniform(2000.0, 4000.0)
    for factor in (large, -large):
        keys = factor * np.array([1.0, 1.0, 0.9]).reshape(3, 1, 1)
        values = np.array([2.0, 4.0, 9.0]).reshape(3, 1, 1)
        query = np.ones((1, 1, 1))
        cache = work.make("KVCache", 1, 1)
        for token in range(3):
            cache("append", keys[token : token + 1].tolist(), values[token : token + 1].tolist(), form=None)
        found = cache("attend", query.tolist(), form=FLOATS)
        compare(f"With the scores {keys.ravel().tolist()}", found, exact(query, keys, values))


def test_steps_do_not_grow(work):
    """A new token behind 400 kept ones takes as many steps as one behind 40: numpy does what concerns every token."""
    queries, keys, values = drawn(work.random.randrange(2**32), 401, 1, 1, 2)
    cache, steps, length = work.make("KVCache", 1, 2), [], 0
    for more in (40, 400):
        for stop in range(length + 10, more + 1, 10):
            cache("append", keys[stop - 10 : stop].tolist(), values[stop - 10 : stop].tolist(), form=None)
        length = more
        other = cache.copy()
        other("append", keys[more : more + 1].tolist(), values[more : more + 1].tolist(), form=None)
        count = work.steps
        found = other("attend", queries[more : more + 1].tolist(), form=FLOATS)
        steps.append(count + work.steps)
        compare(
            f"After {more + 1} tokens", found, exact(queries[more : more + 1], keys[: more + 1], values[: more + 1])
        )
    if steps[1] > steps[0] + 40:
        raise Unmet(f"append and attend take {steps[0]} steps behind 40 tokens, and {steps[1]} behind 400.")


def test_keeps_the_laws(work):
    """In the engine with many requests, under all laws: each token is computed once, before the next one is needed."""
    keeps_the_laws(work, MANY, Cached)
