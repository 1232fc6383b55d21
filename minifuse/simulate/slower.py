"""Multiples of the roofline that were seen on real machines, by operator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

Factors = tuple[tuple[int, float], ...]  # number of tokens, times the roofline; ascending


@dataclass(frozen=True, slots=True)
class Slower:
    """Holds multiples of the roofline, by operator; operators run one after another.

    Between two points a factor is linear in the logarithm of the tokens; elsewhere the nearest point holds.

    Attributes:
        products: of tokens and weights, by tokens of the iteration.
        decode: of attention of single tokens.
        prefill: of attention of several tokens of a sequence, by their number.
        copy_s: of each copy between the tiers, keys or values of a move in one layer, besides its bytes.
        both_ways: part of its rate that each direction of the link keeps while both are busy.
    """

    products: Factors
    decode: float
    prefill: Factors
    copy_s: float = 0.0
    both_ways: float | None = None

    def attention(self, queries: float) -> float:
        """Return the factor of attention of so many tokens of a sequence."""
        return self.decode if queries == 1 else factor(self.prefill, queries)

    def __str__(self) -> str:
        told = f"products {_told(self.products)}, attention of single tokens {self.decode:g}"
        told += (
            f", attention of prompts {_told(self.prefill)}; {self.copy_s * 1e6:g} us for each copy between the tiers"
        )
        return told + (f", {self.both_ways:g} of the rate both ways at once" if self.both_ways else "")


def _told(points: Factors) -> str:
    return ", ".join(f"{times:g} (of {count:,} tokens)" for count, times in points)


def factor(points: Factors, tokens: float) -> float:
    """Interpolate a factor.

    >>> [factor(((64, 1.0), (256, 2.0)), tokens) for tokens in (1, 64, 128, 256, 1000)]
    [1.0, 1.0, 1.5, 2.0, 2.0]
    """
    for (low, before), (high, after) in pairwise(points):
        if low < tokens < high:
            return before + (after - before) * math.log(tokens / low) / math.log(high / low)
    return points[0][1] if tokens <= points[0][0] else points[-1][1]


# Public profiles of A100s: products of a few tokens take 1.2 to 1.3 times their roofline, of 128 tokens 1.5 to 2.1;
# attention of single tokens 1.3 to 2.7; 96 tokens after 3,488 others 3.7, a prompt of 2,688 tokens 5.7. For other
# machines this is an assumption. Pensieve (3.5.1) saw each direction of the link carry 18% to 20% less while both are
# busy. The seconds of a copy are a rounded value.
PROFILED = Slower(
    products=((64, 1.25), (128, 1.8)),
    decode=2.0,
    prefill=((96, 3.7), (2688, 5.7)),
    copy_s=5e-6,
    both_ways=0.81,
)
