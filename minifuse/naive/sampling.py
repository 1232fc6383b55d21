"""The oracle's own sampling: one token at a time, in plain Python numbers.

A token is drawn by the Gumbel-max trick (Gumbel, 1954). The noise is a function of (seed, position, token), so that
every technique draws the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from minifuse.core.request import Sampling

MASK = (1 << 64) - 1


def draw(logits: Seq[float], params: Sampling, position: int) -> int:
    """Draw the token at `position` from its logits; among equals, the lowest id wins."""
    tokens = range(len(logits))
    if params.temperature == 0:
        return max(tokens, key=lambda token: (logits[token], -token))
    most = max(logits)
    scaled = [(logit - most) / params.temperature for logit in logits]
    return max(
        kept(scaled, params.top_k, params.top_p), key=lambda t: (scaled[t] + _noise(params.seed, position, t), -t)
    )


def kept(scaled: Seq[float], top_k: int, top_p: float) -> list[int]:
    """List the `top_k` likeliest tokens, cut where their probabilities reach `top_p`.

    `top_k` 0 and `top_p` 1 keep all tokens. Among equally likely tokens, those with the lowest ids are kept.

    >>> kept([math.log(p) for p in (0.1, 0.2, 0.3, 0.4)], 3, 0.6)  # of the top 3, 4/9 do not reach 0.6; 7/9 do
    [3, 2]
    """
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))[: top_k or None]
    if top_p >= 1:
        return order
    weights = [math.exp(scaled[token] - scaled[order[0]]) for token in order]
    total, reached = math.fsum(weights), 0.0
    for count, weight in enumerate(weights, start=1):
        reached += weight / total
        if reached >= top_p:
            return order[:count]
    return order


def _noise(seed: int, position: int, token: int) -> float:
    """Compute standard Gumbel noise, -log(-log(u)); u is the upper 52 bits of a hash."""
    bits = _mix(_mix(_mix(seed) ^ position) ^ _mix(token)) >> 12
    return -math.log(-math.log((bits + 0.5) / 2.0**52))


def _mix(x: int) -> int:
    """Mix an unsigned 64-bit number by SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31
