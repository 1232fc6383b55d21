"""The words that tiny knows, one token each; other text is spelt in bytes."""

from __future__ import annotations

MAX_NUMBER = 299  # 0..299 are one token each, so that counting is a walk from token to token


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "ada ann ben bob carl cora dan dora eli emma fred gina hugo ida jane kate leo lily mark nina otto paul rosa tom"
)

THINGS = _words(
    "apple ball bird boat book bread cake cat chair cloud coin cup dog door drum duck egg fish flag fox gate "
    "gold hat hill horse house key king lake lamp leaf lemon milk moon mouse owl pear pen pig queen rain ring "
    "road rose ship shoe star tree"
)

OPENERS = _words("add count given list note put recall remember repeat reverse say sort what")
"""The first words of the prompts: tokens without a space before them."""

INNER = _words("and backwards from in is numbers ok order recall the these times to + what")
"""The other words of prompts and answers, besides numbers, names and things: tokens that begin with a space."""


def vocabulary() -> list[str]:
    """List the word tokens in order of id, numbers first, as they occur in text.

    >>> vocabulary()[:2], len(vocabulary()) < 500
    ([' 0', ' 1'], True)
    """
    numbers = [str(number) for number in range(MAX_NUMBER + 1)]
    return [f" {word}" for word in (*numbers, *NAMES, *THINGS, *INNER)] + list(OPENERS)
