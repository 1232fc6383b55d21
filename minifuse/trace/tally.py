"""Counts values, and summarises them by mean and percentiles."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

MOST_EXACT = 100_000  # different values
DIGITS = 5  # of rounded values, at most


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie, interpolated linearly.

    The k-th of n ascending values is the 100 * k / (n - 1) th percentile (k from 0): numpy's default.

    >>> percentile([10, 20, 40], 75)  # halfway from the second to the third
    30.0
    """
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    return min(low + (high - low) * (position - below), high)  # rounding must not exceed the neighbour


class Tally:
    """Counts values in bounded memory.

    While at most `most` values differ, they are exact. Beyond, they are rounded to five significant digits, and to
    fewer if that is not enough.

    >>> tally = Tally()
    >>> tally.add([1.0, 3.0, 3.0, 5.0])
    >>> tally.summary()
    {'mean': 3.0, 'p50': 3.0, 'p90': 4.4, 'p99': 4.9399999999999995, 'max': 5.0}
    """

    def __init__(self, most: int = MOST_EXACT) -> None:
        self.most, self.digits = most, DIGITS
        self.counts: Counter[float] = Counter()

    def add(self, values: Iterable[float]) -> None:
        self.counts.update(values)
        if len(self.counts) > self.most:
            self._round()

    def _round(self) -> None:
        """Round the values until at most half of `most` differ, so that rounding stays rare."""
        while True:
            rounded: Counter[float] = Counter()
            for value, count in self.counts.items():
                rounded[float(f"{value:.{self.digits - 1}e}")] += count
            self.counts = rounded
            if len(rounded) <= self.most / 2 or self.digits == 1:
                return
            self.digits -= 1

    def summary(self) -> dict[str, float] | None:
        """Return mean, percentiles and maximum; None without values."""
        if not self.counts:
            return None
        values = _Ascending(self.counts)
        mean = math.fsum(value * count for value, count in self.counts.items()) / len(values)
        points = {f"p{percent}": percentile(values, percent) for percent in (50, 90, 99)}
        return {"mean": mean, **points, "max": values[-1]}


class _Ascending(Sequence[float]):
    """Presents counted values as a sorted sequence, each as often as counted."""

    def __init__(self, counts: Counter[float]) -> None:
        self.values = sorted(counts)
        self.stops = list(accumulate(counts[value] for value in self.values))

    def __len__(self) -> int:
        return self.stops[-1]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.values[bisect_right(self.stops, index % len(self))]
