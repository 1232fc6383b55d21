"""Draws Baton's two sets of queries (5.1); the paper gives only their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from minifuse.core.request import Request

# In words; a word is one token here. "Around 4,000" is 3,600 to 4,000, so that the KV of four rows of the doubled
# sequences fits the 48 GB of the paper's machine beside the weights, as it did there.
LONG, SHORT, SHORTER = (3600, 4000), (24, 400), (24, 200)


class Query(NamedTuple):
    prompt: int  # tokens
    answer: int


def first_set(count: int, seed: int, scale: float) -> list[Query]:
    """Draw queries of three kinds, 1:1:2, in random order.

    The kinds are: a long prompt with a short answer; a short prompt with a long answer; both short. `scale` multiplies
    all lengths.
    """
    rng = Random(f"baton first {seed}")
    kinds = [((LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (SHORT, SHORT))[i % 4] for i in range(count)]
    rng.shuffle(kinds)
    return [_draw(rng, kind, scale) for kind in kinds]


def second_set(count: int, seed: int, scale: float) -> list[Query]:
    """Draw short prompts with short answers."""
    rng = Random(f"baton second {seed}")
    return [_draw(rng, (SHORTER, SHORTER), scale) for _ in range(count)]


def _draw(rng: Random, kind: tuple[tuple[int, int], tuple[int, int]], scale: float) -> Query:
    prompt, answer = (max(1, round(scale * rng.uniform(*span))) for span in kind)
    return Query(prompt, answer)


def requests_of(queries: Sequence[Query], vocab: int, seed: int) -> list[Request]:
    """Make requests that arrive at time 0, with answers of exactly these lengths."""
    rng = Random(f"baton tokens {seed}")
    return [
        Request(f"q{i}", tuple(rng.choices(range(vocab), k=query.prompt)), query.answer, ignore_eos=True)
        for i, query in enumerate(queries)
    ]
