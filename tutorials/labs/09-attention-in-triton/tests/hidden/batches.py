"""Batches of all sorts. Each has one difficulty more than the public ones."""

from math import nan

from stage import compare, drawn


def test_partly_filled_blocks(work):
    """Contexts that end within a block, with blocks of several sizes."""
    random = work.random
    for page in (3, 4, 8):
        compare(
            work, drawn(random, [(1, random.randint(1, 30)) for _ in range(3)] + [(1, 2), (1, page + 1)], page=page)
        )


def test_heads_share_kv(work):
    """Two and three KV heads, each of which two or three heads share."""
    random = work.random
    for kv_heads, group in ((2, 2), (3, 2), (2, 3)):
        compare(work, drawn(random, [(1, 8), (1, 16)], kv_heads, group))


def test_prompts_are_causal(work):
    """Prompts of up to 40 tokens, with and without a past, beside single tokens: no query sees a later token."""
    random = work.random
    compare(work, drawn(random, [(2, 4), (8, 8)]))
    compare(work, drawn(random, [(1, 12), (32, 32), (5, 28), (17, 32)]))
    compare(work, drawn(random, [(19, 24), (1, 8)], 1, 3))
    compare(work, drawn(random, [(3, 24), (16, 16)], 2, 1, page=8))
    compare(work, drawn(random, [(6, 100), (40, 80)], factor=0.0))  # all that is seen weighs the same


def test_long_contexts(work):
    """Contexts of up to 200 tokens, of which a program reads 32 at once."""
    random = work.random
    compare(work, drawn(random, [(1, 64), (1, 200)]))
    compare(work, drawn(random, [(1, 36), (1, 100), (1, 160)], factor=3.0))


def test_unwritten_slots(work):
    """Slots that no token has may hold NaN, and that does not show."""
    compare(work, drawn(work.random, [(1, 8), (1, 20)], unwritten=nan))


def test_large_scores(work):
    """Scores of hundreds, positive and negative: their exponentials alone are no float32."""
    compare(work, drawn(work.random, [(1, 16), (1, 8)], factor=300.0))
