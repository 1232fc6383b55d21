"""Open task: which tokens to keep. The error of attention over the kept tokens, against attention over all."""

import numpy as np

from minifuse.labs.submission import StudentFault

COSTS = {"error in %": "lower"}
SIZE, LENGTH, TEXTS, DIM = 24, 240, 6, 16


def texts(work):
    """Queries, keys and values of each text, [LENGTH, DIM].

    A few early tokens attract every query, near tokens attract more than far ones, and the text comes back to one of
    four topics every 20 tokens; one token in six is strongly about the topic of its time.
    """
    random = np.random.default_rng(work.random.randrange(2**32))
    for _ in range(TEXTS):
        topics, sink = random.normal(size=(4, DIM)), random.normal(size=DIM)
        focus = np.repeat(random.integers(4, size=LENGTH // 20), 20)
        angle = 2 * np.pi * np.arange(LENGTH) / 160
        near = np.stack([np.cos(angle), np.sin(angle)], 1)
        about = np.where(random.random(LENGTH) < 1 / 6, 1.0, 0.1)[:, None] * topics[focus]
        keys = about + 0.3 * random.normal(size=(LENGTH, DIM))
        keys[:2] += 1.2 * sink
        queries = 1.2 * topics[focus] + 0.8 * sink + 0.3 * random.normal(size=(LENGTH, DIM))
        keys[:, :2], queries[:, :2] = 2.0 * near, 3.0 * near
        yield queries, keys, random.normal(size=(LENGTH, DIM)) + topics[focus]


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def error(work, keepers):
    """Of each text's queries, the mean of |kept - all| / |all|, where `drop(kept, weights)` says what goes."""
    found = []
    for (queries, keys, values), drop in zip(texts(work), keepers, strict=True):
        kept = []
        for token, query in enumerate(queries):
            kept.append(token)
            weights = softmax(keys[kept] @ query / np.sqrt(DIM))
            if len(kept) > SIZE:
                gone = drop(kept, weights.tolist())
                weights = np.delete(weights, kept.index(gone))
                kept.remove(gone)
                found.append(away(query, keys, values, kept, weights / weights.sum(), token))
    return 100 * float(np.mean(found))


def away(query, keys, values, kept, weights, token):
    """How far the output over the kept tokens is from that over all."""
    whole = softmax(keys[: token + 1] @ query / np.sqrt(DIM)) @ values[: token + 1]
    return np.linalg.norm(weights @ values[kept] - whole) / np.linalg.norm(whole)


def score(work):
    """The student's error, with a `Keeper` of its own for each text."""

    def student():
        keeper = work.make("Keeper", SIZE)

        def drop(kept, weights):
            found = keeper("drop", kept, weights, form=int)
            if found not in kept:
                raise StudentFault(f"drop returned {found}, which is not kept: return one of {kept}.")
            return found

        return drop

    return {"error in %": error(work, [student() for _ in range(TEXTS)])}


def last(kept, weights):
    return kept[0]


def first_and_last(kept, weights):
    return kept[4]


def strongest(work):
    """At each query the tokens that it attends to most, of all there were: no cache can know them in advance."""
    found = []
    for queries, keys, values in texts(work):
        for token in range(SIZE, LENGTH):
            weights = softmax(keys[: token + 1] @ queries[token] / np.sqrt(DIM))
            kept = sorted(np.argsort(weights)[-SIZE:].tolist())
            chosen = weights[kept] / weights[kept].sum()
            found.append(away(queries[token], keys, values, kept, chosen, token))
    return 100 * float(np.mean(found))


def baselines(work):
    return {
        "the last 24": {"error in %": error(work, [last] * TEXTS)},
        "the first 4 and the last 20": {"error in %": error(work, [first_and_last] * TEXTS)},
        "bound: the strongest 24 of all, for each query": {"error in %": strongest(work)},
    }
