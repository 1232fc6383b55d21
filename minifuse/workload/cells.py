"""Makes synthetic requests to models of cells: sentences and trees (BatchMaker, 2.7).

    wmt15                sentences: mean 24 words, 99% below 100 words, at most 330 (thesis, 2.7 and Fig. 2.10)
    wmt15:max=50         sentences of at most 50 words, as in the thesis: longer lengths are drawn again
    wmt15:fixed=24       sentences of exactly 24 words
    treebank             binary trees: mean 19 words, at most 56
    identical-trees      complete binary trees of 16 words; of 8 words with identical-trees:leaves=8

These workloads do not use the original data: words are drawn uniformly, lengths from distributions with the data's
statistics, and trees have synthetic shapes. As in `synthetic`, everything follows from a seed, and each choice of each
request draws from a random stream of its own. So a longer workload begins with the requests of a shorter one, and a
`max` changes only the lengths that exceed it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.io.parsing import did_you_mean, one_of, parse_int
from minifuse.model.cells.config import EOS, GO, PAD, CellConfig
from minifuse.model.kinds import request_kind
from minifuse.workload.laws import Arrival, Lengths, Lognormal, Uniform
from minifuse.workload.synthetic import arrive

RESERVED = (PAD, GO, EOS)  # token ids that are not words
WORKLOADS = ("wmt15", "wmt15:max=50", "wmt15:fixed=24", "treebank", "identical-trees", "identical-trees:leaves=8")

# 24 and 330 come from the thesis; sigma from the 99th percentile: ln(100) - ln(24) + sigma^2 / 2 = 2.326 sigma.
SENTENCES, LONGEST = Lognormal(24, 0.727), 330
# A translation is about as long as its source: the ratio is lognormal, with mean 1, and 0.8 to 1.2 for 7 of 10.
RATIO_SIGMA = 0.2
# The Stanford Sentiment Treebank has a mean of 19 words, a standard deviation of 9 to 10, and at most 56 words.
PARSED, LONGEST_PARSED = Lognormal(19.6, 0.5), 56
MOST_LEAVES = 4096

Tree = Any  # a token id, or a tuple of trees


def cell_workload(
    text: str, kind: str, count: int, vocab_size: int, arrival: Arrival | None = None, seed: int = 0
) -> list[Request]:
    """Make requests r0, r1, ... for a model of this kind (see `minifuse.model.cells.config`).

    A sentence is a prompt. Its answer has exactly as many tokens as its translation has words: the thesis decodes
    "until the number of steps is equal to the corresponding English sequence length" (2.7.4). A tree becomes the
    request's `structure`, as nested tuples of token ids, and the tree's words in order become the prompt. No word is
    one of the `RESERVED` token ids.

    Raises:
        UsageError: there is no such workload, it does not suit this kind of model, `count` is below 1, or the
            vocabulary has no words.
    """
    if count < 1:
        raise UsageError(f"The number of requests is {count}: give at least 1.")
    if vocab_size <= max(RESERVED) + 1:
        raise UsageError(
            f"The vocabulary has {vocab_size} tokens, and the first {len(RESERVED)} are no words: give at least "
            f"{max(RESERVED) + 2}."
        )
    words = range(max(RESERVED) + 1, vocab_size)
    name, colon, option = text.strip().partition(":")
    if name == "wmt15":
        if not request_kind(kind).reads_sentences:
            raise UsageError(f'The workload is "{text}", of sentences, and {kind} reads trees: give treebank.')
        draw = _sentences(option if colon else None, words)
    elif name in ("treebank", "identical-trees"):
        if not request_kind(kind).reads_trees:
            raise UsageError(f'The workload is "{text}", of trees, and this {kind} reads sentences: give wmt15.')
        draw = (_parse_trees if name == "treebank" else _complete_trees)(option if colon else None, words)
    else:
        hint = did_you_mean(name, ("wmt15", "treebank", "identical-trees", "sharegpt", "crowd"))
        raise UsageError(
            f'The workload is "{text}"{hint}: give {one_of((*WORKLOADS, "sharegpt", "crowd:turns=4", "tour"))}.'
        )
    stop_ids = CellConfig(kind).eos_ids
    requests = [
        Request(id=f"r{i}", stop_ids=stop_ids, ignore_eos=True, **draw(partial(_stream, seed, i))) for i in range(count)
    ]
    return arrive(requests, arrival or Arrival(), seed)


def _stream(seed: int, number: int, choice: str) -> random.Random:
    return random.Random(f"minifuse {choice} {number} {seed}")


_Stream = Callable[[str], random.Random]  # name of a choice -> its random numbers
_Draw = Callable[[_Stream], Mapping[str, Any]]  # draws the fields of a request


def _sentences(option: str | None, words: range) -> _Draw:
    source: Lengths = SENTENCES
    longest = LONGEST
    if option is None:
        pass
    elif option.startswith("max="):
        longest = parse_int(option[4:], "The longest sentence of wmt15", 5, LONGEST)
    elif option.startswith("fixed="):
        fixed = parse_int(option[6:], "The fixed length of wmt15", 1, LONGEST)
        source = Uniform(fixed, fixed)
    else:
        raise UsageError(f'The workload is "wmt15:{option}": give wmt15, or it with max=50 or fixed=24.')

    def draw(stream: _Stream) -> Mapping[str, Any]:
        length = _at_most(longest, source, stream("source length"))
        ratio = Lognormal(length, RATIO_SIGMA) if source is SENTENCES else source
        return {
            "prompt": tuple(stream("words").choices(words, k=length)),
            "max_new_tokens": _at_most(longest, ratio, stream("target length")),
        }

    return draw


def _parse_trees(option: str | None, words: range) -> _Draw:
    if option is not None:
        raise UsageError(f'The workload is "treebank:{option}", and treebank has no options: leave {option!r} out.')

    def draw(stream: _Stream) -> Mapping[str, Any]:
        length = _at_most(LONGEST_PARSED, PARSED, stream("tree length"))
        prompt = tuple(stream("words").choices(words, k=length))
        return {"prompt": prompt, "structure": _leaning_right(prompt, stream("shape"))}

    return draw


def _complete_trees(option: str | None, words: range) -> _Draw:
    count = 16
    if option is not None:
        key, _, value = option.partition("=")
        count = parse_int(value, "The number of leaves of identical-trees", 2, MOST_LEAVES) if key == "leaves" else 0
    if count.bit_count() != 1:
        raise UsageError(
            f'The workload is "identical-trees:{option}": give leaves=N, where N is a power of two from 2 to '
            f"{MOST_LEAVES}."
        )

    def draw(stream: _Stream) -> Mapping[str, Any]:
        prompt = tuple(stream("words").choices(words, k=count))
        level: list[Tree] = list(prompt)
        while len(level) > 1:
            level = list(zip(level[::2], level[1::2], strict=True))
        return {"prompt": prompt, "structure": level[0]}

    return draw


def _at_most(longest: int, law: Lengths, rng: random.Random) -> int:
    """Draw a length from this law; repeat until the length is at most `longest`."""
    while (length := law.draw(rng)) > longest:
        pass
    return length


def _leaning_right(words: tuple[int, ...], rng: random.Random) -> Tree:
    """Draw a binary tree over these words that resembles a parse.

    The left part of a phrase has one word with probability 1/2, two words with probability 1/4, and so on. The right
    part has the remaining words.

    >>> _leaning_right((7, 8, 9, 10), random.Random(0))
    (7, (8, (9, 10)))
    """
    if len(words) == 1:
        return words[0]
    left = 1
    while left < len(words) - 1 and rng.random() < 0.5:
        left += 1
    return (_leaning_right(words[:left], rng), _leaning_right(words[left:], rng))


def leaves(tree: Tree) -> tuple[int, ...]:
    """List the token ids of a tree, left to right, however deep.

    >>> leaves(((3, 4), (5, (6, 7))))
    (3, 4, 5, 6, 7)
    """
    found = []
    remaining = [tree]
    while remaining:
        top = remaining.pop()
        if isinstance(top, list | tuple):
            remaining.extend(reversed(top))
        elif type(top) is int:
            found.append(top)  # any other item is for the model to refuse
    return tuple(found)
