"""Formats measured numbers: rates, ranges, medians of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def shown(rate: float) -> str:
    """Format requests per second with three digits; from 1,000 on, as a whole number.

    >>> shown(12.345), shown(27136.4)
    ('12.3', '27,136')
    """
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def spread(values: Sequence[float]) -> str:
    """Format the minimum and the maximum of several rounds.

    >>> spread([1.5, 0.25, 2.0])
    '0.25-2'
    """
    return f"{shown(min(values))}-{shown(max(values))}"


def told(rounds: Sequence[float], form: str = "{:.2f}x") -> str:
    """Format the median of the rounds, and their range if there are several.

    >>> told([1.5]), told([1.25, 2.0, 1.5])
    ('1.50x', '1.50x (1.25x to 2.00x)')
    """
    least, most = form.format(min(rounds)), form.format(max(rounds))
    return form.format(median(rounds)) + (f" ({least} to {most})" if len(rounds) > 1 else "")
